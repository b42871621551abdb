//! Freed memory, until its addresses are allocated again.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::access::{AddressRange, Site};
use crate::check::{Report, ReportKind};

/// Freed blocks by address. If a part of a block is allocated again, the rest stays.
#[derive(Default)]
pub(crate) struct Freed(BTreeMap<u64, Rest>);

/// The rest of a freed block.
#[derive(Clone)]
struct Rest {
    bytes: u64,
    /// The start of the block.
    block: u64,
    freed_by: Site,
    tag: Option<Arc<str>>,
}

impl Freed {
    /// Adds a block.
    pub(crate) fn add(&mut self, block: AddressRange, freed_by: Site, tag: Option<Arc<str>>) {
        self.remove_range(block);
        let at = block.start();
        self.0.insert(at, Rest { bytes: block.len(), block: at, freed_by, tag });
    }

    /// Removes a range, which is allocated again or not needed any more.
    pub(crate) fn remove_range(&mut self, range: AddressRange) {
        self.cut(range.start());
        self.cut(range.end());
        while let Some((&start, _)) = self.0.range(range.start()..range.end()).next() {
            self.0.remove(&start);
        }
    }

    /// Returns the finding of a free of `at`, where no block is live: a second free, or one of no
    /// block.
    pub(crate) fn bad_free(&self, at: u64, by: Site, device: Option<usize>) -> Report {
        let again = self.0.get(&at).filter(|rest| rest.block == at);
        let kind = if again.is_some() { ReportKind::DoubleFree } else { ReportKind::UnknownFree };
        Report::new(kind, by)
            .after(again.map(|rest| rest.freed_by.clone()))
            .about(device, AddressRange::new(at, again.map_or(0, |rest| rest.bytes)))
            .tagged(again.and_then(|rest| rest.tag.clone()))
    }

    /// Returns the finding of an access where no block is live: after a free, or outside of any
    /// allocation.
    pub(crate) fn bad_use(&self, used: AddressRange, by: Site, device: Option<usize>) -> Report {
        let at = used.start();
        let before = self.0.range(..=at).next_back();
        let gone = before.filter(|(start, rest)| at - **start < rest.bytes).map(|(_, rest)| rest);
        let kind = if gone.is_some() { ReportKind::UseAfterFree } else { ReportKind::OutOfBounds };
        Report::new(kind, by)
            .after(gone.map(|rest| rest.freed_by.clone()))
            .about(device, used)
            .tagged(gone.and_then(|rest| rest.tag.clone()))
    }

    /// Splits the block that contains `at`.
    fn cut(&mut self, at: u64) {
        let Some((&start, rest)) = self.0.range_mut(..at).next_back() else { return };
        if start + rest.bytes > at {
            let tail = Rest { bytes: start + rest.bytes - at, ..rest.clone() };
            rest.bytes = at - start;
            self.0.insert(at, tail);
        }
    }
}
