//! The history of each byte since its allocation, and findings about the next access.
//!
//! Per byte the last plain write and, per stream, the latest read and the latest atomic write since
//! then are enough: an operation that is ordered after these is ordered after all earlier ones.
//! Atomic writes, and writes of words by streams, need no order among each other, so one of them
//! replaces no other stream's.
//!
//! Bytes with the same past share a segment. An access cuts the segments at its two ends, compares
//! itself with each segment between, and becomes part of them; a plain write replaces them by one.
//! So a program that touches whole blocks has one segment a block, however large it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::access::{Access, AccessKind, AddressRange, Clock, Epoch, Site};
use crate::check::{ReportKind, Wait};
use crate::memory::Reach;

/// The operations that come before an operation.
#[derive(Clone, Copy)]
pub(crate) struct Before<'a> {
    pub(crate) clock: &'a Clock,
    /// Open waits for words: their order is not known yet.
    pub(crate) open: &'a [Wait],
}

impl Before<'_> {
    /// Returns whether the operation comes before, or may still turn out to.
    pub(crate) fn covers(&self, epoch: Epoch) -> bool {
        self.clock.covers(epoch)
            || self.open.iter().any(|wait| self.clock.covers(wait.epoch) || wait.holds_up(epoch))
    }

    /// Returns whether more operations may turn out to come before.
    fn is_open(&self) -> bool {
        self.open.iter().any(|wait| self.clock.covers(wait.epoch))
    }
}

/// An access that is being checked.
pub(crate) struct Check<'a> {
    pub(crate) access: &'a Access,
    pub(crate) before: Before<'a>,
    /// The permitted accesses.
    pub(crate) reach: Reach<'a>,
}

/// A finding about an access.
pub(crate) struct Finding {
    pub(crate) kind: ReportKind,
    /// The other operation.
    pub(crate) first: Option<Site>,
    pub(crate) bytes: AddressRange,
}

/// Disjoint ranges of bytes that were accessed since they were allocated.
#[derive(Default)]
pub(crate) struct History {
    segments: BTreeMap<u64, Segment>,
}

#[derive(Clone)]
struct Segment {
    end: u64,
    content: Content,
    /// The last plain write.
    write: Option<Access>,
    /// Per stream and kind, the latest read since.
    reads: SmallVec<[Access; 2]>,
    /// Per stream, the latest write since that is not plain.
    atomics: Vec<Access>,
}

/// The content of bytes since their allocation.
#[derive(Clone)]
enum Content {
    Written,
    Unwritten,
    /// A value that nothing has written.
    Undefined(Arc<UndefinedStore>),
}

/// The store of a value that nothing has written.
struct UndefinedStore {
    /// The operation, with the place of the byte at `at`.
    site: Site,
    at: u64,
}

impl Content {
    fn new(written: bool) -> Self {
        if written { Self::Written } else { Self::Unwritten }
    }
}

impl History {
    /// Checks an access, adds it, and returns the first finding of each kind: one operation is
    /// one mistake. `known`: whether bytes that no device operation has accessed are initialised.
    pub(crate) fn access(
        &mut self,
        range: AddressRange,
        check: &Check<'_>,
        known: bool,
    ) -> SmallVec<[Finding; 2]> {
        let mut findings: SmallVec<[Finding; 2]> = SmallVec::new();
        let at = range.start();
        let end = range.end();
        self.cut(at);
        self.cut(end);
        let replaces = check.access.kind == AccessKind::Write;
        let mut cursor = at;
        let mut segments = 0;
        while cursor < end {
            let next = self.segments.range(cursor..end).next().map_or(end, |(&start, _)| start);
            if next > cursor {
                if replaces {
                    // Nothing to check, and the write adds one segment for all bytes.
                    cursor = next;
                    continue;
                }
                self.segments.insert(cursor, Segment::new(next, known));
            }
            let Some(segment) = self.segments.get_mut(&cursor) else { break };
            segment.check(cursor, check, |kind, first| {
                if findings.iter().all(|other| other.kind != kind) {
                    let bytes = AddressRange::between(cursor, segment.end);
                    findings.push(Finding { kind, first, bytes });
                }
            });
            if !replaces {
                segment.record(check);
            }
            segments += 1;
            cursor = segment.end;
        }
        if replaces {
            self.overwrite(at, end, segments, check.access);
        }
        findings
    }

    /// Replaces the `segments` of the range by a write of all its bytes.
    fn overwrite(&mut self, at: u64, end: u64, segments: usize, by: &Access) {
        if segments > 1 || !self.segments.contains_key(&at) {
            self.remove(at, end);
        }
        let segment = self.segments.entry(at).or_insert_with(|| Segment::new(end, true));
        segment.end = end;
        segment.content = Content::Written;
        segment.write = Some(by.clone());
        segment.reads.clear();
        segment.atomics.clear();
    }

    /// Returns the first use in the range that the clock does not cover, and its bytes.
    pub(crate) fn first_unordered(
        &self,
        range: AddressRange,
        before: Before<'_>,
    ) -> Option<(AddressRange, &Access)> {
        self.segments.range(range.start()..range.end()).find_map(|(&start, segment)| {
            let mut uses = segment.write.iter().chain(&segment.atomics).chain(&segment.reads);
            let used = uses.find(|used| !before.covers(used.epoch()))?;
            Some((AddressRange::between(start, segment.end), used))
        })
    }

    /// Removes the history of the bytes, whose new owner need not be ordered after it.
    pub(crate) fn clear(&mut self, range: AddressRange) {
        self.cut(range.start());
        self.cut(range.end());
        self.remove(range.start(), range.end());
    }

    fn remove(&mut self, at: u64, end: u64) {
        while let Some((&start, _)) = self.segments.range(at..end).next() {
            self.segments.remove(&start);
        }
    }

    /// Marks the bytes as not written, or as stored with a value that nothing has written; their
    /// history stays.
    pub(crate) fn undefine(&mut self, range: AddressRange, store: Option<&Site>) {
        let at = range.start();
        let content = match store.cloned() {
            Some(site) => Content::Undefined(Arc::new(UndefinedStore { site, at })),
            None => Content::Unwritten,
        };
        self.cut(at);
        self.cut(range.end());
        for (_, segment) in self.segments.range_mut(at..range.end()) {
            segment.content = content.clone();
        }
    }

    /// Splits the segment that contains `at`.
    fn cut(&mut self, at: u64) {
        let Some((_, segment)) = self.segments.range_mut(..at).next_back() else { return };
        if segment.end > at {
            let tail = segment.clone();
            segment.end = at;
            self.segments.insert(at, tail);
        }
    }
}

impl Segment {
    fn new(end: u64, written: bool) -> Self {
        let content = Content::new(written);
        Self { end, content, write: None, reads: SmallVec::new(), atomics: Vec::new() }
    }

    fn check(
        &self,
        start: u64,
        check: &Check<'_>,
        mut found: impl FnMut(ReportKind, Option<Site>),
    ) {
        let unordered = |access: &&Access| {
            let can_race = access.kind.is_plain() || check.access.kind.is_plain();
            can_race && !check.before.covers(access.epoch())
        };
        let is_written = matches!(self.content, Content::Written);
        if !is_written && !check.access.kind.writes() && !check.before.is_open() {
            found(ReportKind::Uninitialised, self.undefined_store(start));
        }
        if let Some(write) = self.write.iter().chain(&self.atomics).find(unordered) {
            let kind = if check.access.kind.writes() {
                ReportKind::WriteAfterWrite
            } else {
                ReportKind::ReadAfterWrite
            };
            found(kind, Some(write.site()));
        }
        if check.access.kind.writes()
            && let Some(read) = self.reads.iter().find(unordered)
        {
            found(ReportKind::WriteAfterRead, Some(read.site()));
        }
    }

    /// Returns the store of the undefined value of the bytes from `start`; without its place, if
    /// that is not of them.
    fn undefined_store(&self, start: u64) -> Option<Site> {
        let Content::Undefined(store) = &self.content else { return None };
        let mut site = store.site.clone();
        if store.at != start {
            site.place = None;
            site.source = None;
        }
        Some(site)
    }

    /// Adds an access that is not a plain write.
    fn record(&mut self, check: &Check<'_>) {
        let access = check.access;
        let stream = access.epoch().stream;
        if access.kind.writes() {
            self.content = Content::Written;
            match self.atomics.iter_mut().find(|write| write.epoch().stream == stream) {
                Some(latest) => *latest = access.clone(),
                None => self.atomics.push(access.clone()),
            }
            return;
        }
        let replaced = |read: &&mut Access| {
            read.epoch().stream == stream && read.kind.is_plain() == access.kind.is_plain()
        };
        match self.reads.iter_mut().find(replaced) {
            Some(latest) => *latest = access.clone(),
            None => self.reads.push(access.clone()),
        }
    }
}
