//! What was freed, until its addresses are handed out again.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::report::{Report, ReportKind, Site};

/// Freed blocks by address. A block of which a part is in use again stays freed in the rest.
#[derive(Default)]
pub(crate) struct Freed(BTreeMap<u64, Rest>);

/// What is left of a freed block.
#[derive(Clone)]
struct Rest {
    bytes: u64,
    /// Where the block started.
    block: u64,
    freed_by: Site,
    tag: Option<Arc<str>>,
}

impl Freed {
    /// A block of `bytes` bytes at `at` is freed.
    pub(crate) fn add(&mut self, at: u64, bytes: u64, freed_by: Site, tag: Option<Arc<str>>) {
        self.carve(at, bytes);
        self.0.insert(at, Rest { bytes, block: at, freed_by, tag });
    }

    /// The range is in use again, or of no interest any more.
    pub(crate) fn carve(&mut self, at: u64, bytes: u64) {
        self.cut(at);
        self.cut(at + bytes);
        while let Some((&start, _)) = self.0.range(at..at + bytes).next() {
            self.0.remove(&start);
        }
    }

    /// A free of `at`, where nothing lives: again, or of what was never a block.
    pub(crate) fn bad_free(&self, at: u64, by: Site, device: Option<usize>) -> Report {
        let again = self.0.get(&at).filter(|rest| rest.block == at);
        Report {
            kind: if again.is_some() { ReportKind::DoubleFree } else { ReportKind::UnknownFree },
            first: again.map(|rest| rest.freed_by.clone()),
            second: by,
            device,
            address: at,
            bytes: again.map_or(0, |rest| rest.bytes),
            tag: again.and_then(|rest| rest.tag.clone()),
        }
    }

    /// An access of `bytes` bytes at `at`, where nothing lives: after a free, or where nothing
    /// ever was.
    pub(crate) fn bad_use(&self, at: u64, bytes: u64, by: Site, device: Option<usize>) -> Report {
        let before = self.0.range(..=at).next_back();
        let gone = before.filter(|(start, rest)| at - **start < rest.bytes).map(|(_, rest)| rest);
        Report {
            kind: if gone.is_some() { ReportKind::UseAfterFree } else { ReportKind::OutOfBounds },
            first: gone.map(|rest| rest.freed_by.clone()),
            second: by,
            device,
            address: at,
            bytes,
            tag: gone.and_then(|rest| rest.tag.clone()),
        }
    }

    /// Makes `at` a boundary.
    fn cut(&mut self, at: u64) {
        let Some((&start, rest)) = self.0.range_mut(..at).next_back() else { return };
        if start + rest.bytes > at {
            let tail = Rest { bytes: start + rest.bytes - at, ..rest.clone() };
            rest.bytes = at - start;
            self.0.insert(at, tail);
        }
    }
}
