//! Declarations of what a library's launches access, compared with what their work accesses.

use std::fmt::Write;
use std::sync::Arc;

use crate::access::{AddressRange, Allowed, Declaration, DisjointRanges};
use crate::check::{Check, Findings, Report, ReportKind, Shadow, Undeclared, undeclared::name};

impl Shadow {
    /// Finds the blocks of the uses of a declaration, once.
    pub(crate) fn resolve(&self, declaration: &Declaration) {
        declaration.allowed.get_or_init(|| {
            let mut accesses = Vec::new();
            let mut writes = Vec::new();
            let mut listed = String::new();
            for used in &declaration.uses {
                let known = self.block_around(used.ptr);
                let range = match (used.end, &known) {
                    (u64::MAX, Some(block)) => block.range,
                    // A block that was not reported: its allocation.
                    (u64::MAX, None) => self.extent_around(used.ptr),
                    _ => AddressRange::between(used.start, used.end),
                };
                accesses.push(range);
                if used.writes != 0 {
                    writes.push(range);
                }
                let access = match (used.reads != 0, used.writes != 0) {
                    (true, true) => "reads and writes",
                    (false, true) => "writes",
                    _ => "reads",
                };
                let comma = if listed.is_empty() { "" } else { ", " };
                let tag = known.and_then(|block| block.tag);
                let name = name(tag.as_deref(), used.block);
                let _ = write!(listed, "{comma}{access} {name}");
            }
            let accesses = DisjointRanges::new(accesses);
            let writes = DisjointRanges::new(writes);
            Allowed { accesses, writes, listed }
        });
    }

    /// Compares an access, which is inside of one owner's memory, with the declaration of its
    /// launch. Of memory that belongs to no block of the library only what is declared as read is
    /// compared.
    pub(crate) fn compare(&self, range: AddressRange, check: &Check<'_>, out: &mut Findings) {
        let Some(declaration) = &check.access.operation.origin.declaration else { return };
        let Some(allowed) = declaration.allowed.get() else { return };
        let ranges = if check.access.kind.writes() { &allowed.writes } else { &allowed.accesses };
        let mut rest = range;
        while let Some(outside) = ranges.first_outside(rest) {
            let address = outside.start();
            let as_read = allowed.accesses.contains(address);
            let Some(block) = self.block_around(address) else {
                if as_read {
                    let declared = allowed.listed.clone();
                    let unknown =
                        Undeclared { block: 0, start: 0, as_read, writes: true, declared };
                    return out.push(self.undeclared(outside, check, None, unknown));
                }
                rest = AddressRange::between(outside.end(), range.end());
                continue;
            };
            // One operation on one block is one mistake.
            rest = AddressRange::between(block.range.end(), range.end());
            if !declaration.ids.contains(&block.during) {
                let declared = allowed.listed.clone();
                let start = block.range.start();
                let writes = check.access.kind.writes();
                let found = Undeclared { block: block.number, start, as_read, writes, declared };
                let bytes = AddressRange::between(address, outside.end().min(block.range.end()));
                out.push(self.undeclared(bytes, check, block.tag, found));
            }
        }
    }

    fn undeclared(
        &self,
        bytes: AddressRange,
        check: &Check<'_>,
        tag: Option<Arc<str>>,
        found: Undeclared,
    ) -> Report {
        let kind = match check.access.kind.writes() {
            true => ReportKind::UndeclaredWrite,
            false => ReportKind::UndeclaredRead,
        };
        let report = Report::new(kind, check.access.site()).tagged(tag).undeclared(found);
        report.about(self.map.device_at(bytes.start()), bytes)
    }
}
