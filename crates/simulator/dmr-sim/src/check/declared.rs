//! Declarations of what a library's launches access, compared with what their work accesses.
//!
//! A declaration is in force for the thread that has made it, until it ends: for the work of the
//! whole thread, or for that on one stream. Work keeps the declaration that was in force when it
//! was submitted.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};

use smallvec::SmallVec;

use crate::check::findings::Findings;
use crate::check::history::{Check, Origin};
use crate::check::report::{Report, ReportKind};
use crate::check::shadow::Shadow;
use crate::machine::state::Machine;

/// A block of a library: a region of a pool, or an allocation that the library has named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// Its number in messages; 0 if it has none.
    pub(crate) number: u64,
    /// The declaration that was in force for the thread that has allocated it; 0 if none was.
    pub(crate) during: u64,
}

/// A use that a launch declares, as the library passes it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeclaredUse {
    /// An address in the block.
    pub ptr: u64,
    /// The number of the block.
    pub block: u64,
    /// The first address; 0 for the whole block.
    pub start: u64,
    /// The address behind the last; `u64::MAX` for the whole block.
    pub end: u64,
    /// 1 if the launch reads the bytes, otherwise 0.
    pub reads: u32,
    /// 1 if the launch writes the bytes, otherwise 0.
    pub writes: u32,
}

/// Changes the uses that a launch declares: a planted mistake.
pub(crate) type AlterUses = Box<dyn FnMut(&mut Vec<DeclaredUse>) + Send>;

/// The uses that the launches in force declare. What they do not allow is a finding.
#[derive(Debug, Default)]
pub(crate) struct Declaration {
    /// Its own id, and those of the declarations whose uses it includes.
    ids: SmallVec<[u64; 2]>,
    uses: Vec<DeclaredUse>,
    /// The bytes that may be accessed, once the blocks of the uses are known.
    allowed: OnceLock<Allowed>,
}

/// Disjoint ranges of addresses, in order.
#[derive(Debug, Default)]
struct Ranges(Vec<(u64, u64)>);

#[derive(Debug, Default)]
struct Allowed {
    accesses: Ranges,
    writes: Ranges,
    /// The uses, for messages.
    listed: String,
}

/// The declarations in force.
#[derive(Default)]
pub(crate) struct Declarations {
    last_id: u64,
    /// Called with the uses of each launch.
    pub(crate) alter: Option<AlterUses>,
    of_threads: HashMap<ThreadId, Vec<Scope>>,
}

struct Scope {
    id: u64,
    /// The stream whose work it is for; `None` for all of the thread's.
    stream: Option<u32>,
    /// `None` if the work may access anything.
    declaration: Option<Arc<Declaration>>,
}

impl Declarations {
    /// Returns the latest declaration in force for what this thread submits to `stream`.
    fn latest(&self, stream: u32) -> Option<&Scope> {
        if self.of_threads.is_empty() {
            return None;
        }
        let scopes = self.of_threads.get(&thread::current().id())?;
        scopes.iter().rev().find(|scope| scope.stream.is_none_or(|only| only == stream))
    }

    /// Returns the id of the latest declaration of this thread; 0 if none is in force.
    pub(crate) fn id(&self) -> u64 {
        if self.of_threads.is_empty() {
            return 0;
        }
        let scopes = self.of_threads.get(&thread::current().id());
        scopes.and_then(|scopes| scopes.last()).map_or(0, |scope| scope.id)
    }
}

impl Machine {
    /// Begins a declaration for the calling thread: for its work on `stream`, together with what
    /// was in force there, or for all its work. Without `uses` the work may access anything.
    /// Returns the id of the declaration.
    pub(crate) fn begin_declaration(
        &mut self,
        stream: Option<u32>,
        mut uses: Option<Vec<DeclaredUse>>,
    ) -> u64 {
        if let (Some(alter), Some(uses)) = (&mut self.declarations.alter, &mut uses) {
            alter(uses);
        }
        self.declarations.last_id += 1;
        let id = self.declarations.last_id;
        let own = uses.map(|uses| Declaration { uses, ..Declaration::default() });
        let outer = stream.and_then(|stream| self.declarations.latest(stream));
        let declaration = match (own, outer) {
            (None, _) | (_, Some(Scope { declaration: None, .. })) => None,
            (Some(mut own), outer) => {
                own.ids.push(id);
                if let Some(outer) = outer.and_then(|scope| scope.declaration.as_ref()) {
                    own.ids.extend_from_slice(&outer.ids);
                    own.uses.extend_from_slice(&outer.uses);
                }
                Some(Arc::new(own))
            }
        };
        if let Some(declaration) = declaration.clone() {
            // Blocks are known when all work before has been checked.
            self.check(move |machine| declaration.resolve(&machine.shadow));
        }
        let scopes = self.declarations.of_threads.entry(thread::current().id()).or_default();
        scopes.push(Scope { id, stream, declaration });
        id
    }

    /// Ends a declaration, of any thread.
    pub(crate) fn end_declaration(&mut self, id: u64) {
        self.declarations.of_threads.retain(|_, scopes| {
            scopes.retain(|scope| scope.id != id);
            !scopes.is_empty()
        });
    }

    /// Returns the description of work that this thread submits to `stream`, with the declaration
    /// in force.
    pub(crate) fn declared(&self, stream: u32, origin: Arc<Origin>) -> Arc<Origin> {
        // Nodes of a graph run on streams of its own.
        let stream = self.node.map_or(stream, |(_, launch)| launch.stream);
        match self.declarations.latest(stream) {
            Some(Scope { declaration: Some(declaration), .. }) => {
                Arc::new(Origin { declaration: Some(declaration.clone()), ..(*origin).clone() })
            }
            _ => origin,
        }
    }
}

impl Declaration {
    fn resolve(&self, shadow: &Shadow) {
        self.allowed.get_or_init(|| {
            let mut allowed = Allowed::default();
            for used in &self.uses {
                let known = shadow.block_around(used.ptr);
                let (start, end) = match (used.end, &known) {
                    (u64::MAX, Some(block)) => (block.start, block.end),
                    // A block that was not reported: its allocation.
                    (u64::MAX, None) => shadow.extent_around(used.ptr),
                    _ => (used.start, used.end),
                };
                allowed.accesses.0.push((start, end));
                if used.writes != 0 {
                    allowed.writes.0.push((start, end));
                }
                let access = match (used.reads != 0, used.writes != 0) {
                    (true, true) => "reads and writes",
                    (false, true) => "writes",
                    _ => "reads",
                };
                let comma = if allowed.listed.is_empty() { "" } else { ", " };
                let tag = known.and_then(|block| block.tag);
                let name = name(tag.as_deref(), used.block);
                let _ = write!(allowed.listed, "{comma}{access} {name}");
            }
            allowed.accesses.join();
            allowed.writes.join();
            allowed
        });
    }
}

/// Returns the name of a block in messages.
pub(crate) fn name(tag: Option<&str>, number: u64) -> String {
    match (tag, number) {
        (Some(tag), 0) => format!("{tag:?}"),
        (Some(tag), number) => format!("{tag:?} (block #{number})"),
        (None, 0) => "memory without a number".to_owned(),
        (None, number) => format!("block #{number}"),
    }
}

impl Ranges {
    /// Orders the ranges, and joins those that touch.
    fn join(&mut self) {
        self.0.sort_unstable();
        self.0.dedup_by(|later, earlier| {
            let touches = later.0 <= earlier.1;
            if touches {
                earlier.1 = earlier.1.max(later.1);
            }
            touches
        });
    }

    /// Returns the first bytes from `at` to `end` that are in none of the ranges.
    fn first_outside(&self, mut at: u64, end: u64) -> Option<(u64, u64)> {
        let mut next = self.0.partition_point(|&(_, range_end)| range_end <= at);
        while let Some(&(start, range_end)) = self.0.get(next)
            && start <= at
        {
            at = range_end;
            next += 1;
        }
        let limit = self.0.get(next).map_or(end, |&(start, _)| start.min(end));
        (at < end).then_some((at, limit))
    }

    fn contains(&self, at: u64) -> bool {
        let next = self.0.partition_point(|&(_, end)| end <= at);
        self.0.get(next).is_some_and(|&(start, _)| start <= at)
    }
}

/// An access that a launch has not declared, in a finding.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Undeclared {
    /// The number of the block; 0 if it has none.
    pub block: u64,
    /// The first byte of the block.
    pub start: u64,
    /// `true` if the launch has declared the bytes as read, and writes them.
    pub as_read: bool,
    /// `true` if the bytes are written.
    writes: bool,
    /// The launch's declaration: `reads "x" (block #7), writes "y" (block #8)`.
    pub declared: String,
}

/// Writes what the launch declares, and what is missing.
impl fmt::Display for Undeclared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { as_read, declared, .. } = self;
        match declared.as_str() {
            "" => f.write_str("the launch declares nothing: ")?,
            declared => write!(f, "the launch declares: {declared}; ")?,
        }
        f.write_str(match (as_read, self.writes) {
            (true, _) => "declare `write` or `read_write` instead of `read`",
            (false, true) => "declare the bytes with `write` or `read_write`",
            (false, false) => "declare the bytes with `read`",
        })
    }
}

impl Shadow {
    /// Compares an access, which is inside of one owner's memory, with the declaration of its
    /// launch. Of memory that belongs to no block of the library only what is declared as read is
    /// compared.
    pub(crate) fn compare(&self, at: u64, end: u64, check: &Check<'_>, out: &mut Findings) {
        let Some(declaration) = &check.access.origin.declaration else { return };
        let Some(allowed) = declaration.allowed.get() else { return };
        let ranges = if check.writes { &allowed.writes } else { &allowed.accesses };
        let mut from = at;
        while let Some((address, to)) = ranges.first_outside(from, end) {
            let as_read = allowed.accesses.contains(address);
            let Some(block) = self.block_around(address) else {
                if as_read {
                    let declared = allowed.listed.clone();
                    let unknown =
                        Undeclared { block: 0, start: 0, as_read, writes: true, declared };
                    return out.push(self.undeclared(address, to, check, None, unknown));
                }
                from = to;
                continue;
            };
            // One operation on one block is one mistake.
            from = block.end;
            if !declaration.ids.contains(&block.block.during) {
                let OwnedBlock { block, start, end, tag } = block;
                let declared = allowed.listed.clone();
                let writes = check.writes;
                let found = Undeclared { block: block.number, start, as_read, writes, declared };
                out.push(self.undeclared(address, to.min(end), check, tag, found));
            }
        }
    }

    fn undeclared(
        &self,
        address: u64,
        end: u64,
        check: &Check<'_>,
        tag: Option<Arc<str>>,
        found: Undeclared,
    ) -> Report {
        let kind = match check.writes {
            true => ReportKind::UndeclaredWrite,
            false => ReportKind::UndeclaredRead,
        };
        let device = self.map.device_at(address);
        let undeclared = Some(Box::new(found));
        let found = Report::new(kind, check.access.site()).about(device, address, end - address);
        Report { tag, undeclared, ..found }
    }
}

/// A block, and its extent.
#[derive(Clone, Debug)]
pub(crate) struct OwnedBlock {
    pub(crate) block: Block,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) tag: Option<Arc<str>>,
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    fn joined(ranges: &[(u64, u64)]) -> Ranges {
        let mut ranges = Ranges(ranges.to_vec());
        ranges.join();
        ranges
    }

    #[test]
    fn ranges_that_touch_or_overlap_are_one() {
        let ranges = joined(&[(20, 30), (0, 4), (4, 8), (22, 25), (29, 31)]);
        assert_eq!(ranges.0, [(0, 8), (20, 31)]);
        assert!(ranges.contains(7) && !ranges.contains(8) && !ranges.contains(19));
        assert!(ranges.contains(20) && ranges.contains(30) && !ranges.contains(31));
    }

    #[test]
    fn the_first_bytes_outside_are_found_before_between_and_behind_the_ranges() {
        let ranges = joined(&[(10, 20), (30, 40)]);
        assert_eq!(ranges.first_outside(0, 50), Some((0, 10)));
        assert_eq!(ranges.first_outside(10, 50), Some((20, 30)));
        assert_eq!(ranges.first_outside(15, 25), Some((20, 25)));
        assert_eq!(ranges.first_outside(30, 45), Some((40, 45)));
        assert_eq!(ranges.first_outside(12, 20), None);
        assert_eq!(joined(&[]).first_outside(3, 4), Some((3, 4)));
        assert_eq!(joined(&[(0, 4), (4, 9)]).first_outside(1, 9), None);
    }
}
