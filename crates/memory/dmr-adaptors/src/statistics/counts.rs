//! The counters of a resource: overall, by tag, by stream, and of each open scope.

use std::collections::HashMap;

use crossbeam_utils::CachePadded;
use dmr_core::process::LeakedInChild;
use dmr_core::{AllocTag, Process, SpinLock, SpinLockGuard, StreamId};
use rustc_hash::FxHashMap;

use super::report::{Counter, ScopeCounter, Statistics, StreamStatistics, TagStatistics};
use super::scope::OpenScopes;

/// The counters of a resource, behind their lock. Aligned, so that the lock and the overall
/// counters are one cache line: threads that count at the same time pass on that line and the one
/// of their tag.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Counts {
    made_in: Process,
    counters: LeakedInChild<SpinLock<AllCounters>>,
}

impl Counts {
    pub(super) fn new() -> Self {
        Self { made_in: Process::current(), counters: LeakedInChild::default() }
    }

    /// Locks the counters; `None` in a forked child, where a thread of the parent may hold the lock
    /// for ever.
    #[inline]
    pub(super) fn lock(&self) -> Option<SpinLockGuard<'_, AllCounters>> {
        let is_current = self.made_in.is_current();
        is_current.then(|| self.counters.lock())
    }
}

/// The effect of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// Allocated a block of this many bytes.
    Allocated(u64),
    /// Grew a block by this many bytes.
    Grown(u64),
    /// Freed a block of this many bytes.
    Freed(u64),
    /// Failed to allocate a block.
    Failed,
}

/// The counters of one resource, tag, stream or scope.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) bytes: ScopeCounter,
    pub(super) blocks: ScopeCounter,
    pub(super) failures: u64,
}

impl Counters {
    #[inline]
    pub(super) fn count(&mut self, event: Event) {
        match event {
            Event::Allocated(bytes) => {
                self.bytes.add(bytes);
                self.blocks.add(1);
            }
            Event::Grown(bytes) => self.bytes.add(bytes),
            Event::Freed(bytes) => {
                self.bytes.subtract(bytes);
                self.blocks.subtract(1);
            }
            Event::Failed => self.failures += 1,
        }
    }

    /// Returns the number of blocks freed: those that were allocated and are not there any more.
    pub(super) fn frees(&self) -> u64 {
        self.blocks.total.wrapping_sub(self.blocks.current as u64)
    }

    fn reset_peaks(&mut self) {
        self.bytes.reset_peak();
        self.blocks.reset_peak();
    }
}

/// The counters of the tags.
#[derive(Debug, Default)]
struct TagCounters {
    counters: Vec<CachePadded<Counters>>,
    /// Indices into `counters`, by name.
    by_name: HashMap<AllocTag, usize>,
    /// Indices by the place of the name, so that a call neither hashes nor compares a name.
    by_address: FxHashMap<NameAddress, usize>,
}

/// The address and length of a tag's name. The name is `'static`, so they are always the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NameAddress {
    start: usize,
    len: usize,
}

impl TagCounters {
    #[inline]
    fn get_or_insert(&mut self, tag: AllocTag) -> &mut Counters {
        let name = tag.name();
        let address = NameAddress { start: name.as_ptr().addr(), len: name.len() };
        let index = match self.by_address.get(&address) {
            Some(index) => *index,
            None => self.insert(tag, address),
        };
        &mut self.counters[index]
    }

    #[cold]
    fn insert(&mut self, tag: AllocTag, address: NameAddress) -> usize {
        let index = *self.by_name.entry(tag).or_insert_with(|| {
            self.counters.push(CachePadded::default());
            self.counters.len() - 1
        });
        self.by_address.insert(address, index);
        index
    }
}

/// All counters of one resource.
// In this order, so that the overall counters share the cache line of the lock.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct AllCounters {
    overall: Counters,
    by_tag: TagCounters,
    /// Indexed by stream slot.
    by_stream: Vec<CachePadded<Counters>>,
    pub(super) scopes: OpenScopes,
}

impl AllCounters {
    /// Counts a call. Failures have no stream: the stream itself may be the reason.
    #[inline]
    pub(super) fn count(&mut self, event: Event, tag: AllocTag, stream: Option<StreamId>) {
        self.overall.count(event);
        self.by_tag.get_or_insert(tag).count(event);
        if let Some(slot) = stream.map(StreamId::slot) {
            if slot >= self.by_stream.len() {
                self.by_stream.resize(slot + 1, CachePadded::default());
            }
            self.by_stream[slot].count(event);
        }
        self.scopes.count(event);
    }

    pub(super) fn reset_peaks(&mut self) {
        self.overall.reset_peaks();
        self.by_tag.counters.iter_mut().for_each(|counters| counters.reset_peaks());
        self.by_stream.iter_mut().for_each(|counters| counters.reset_peaks());
    }

    /// Copies the counters, unsorted.
    pub(super) fn statistics(&self) -> Statistics {
        let Counters { bytes, blocks, failures } = self.overall;
        let by_tag = self.by_tag.by_name.iter().map(|(&tag, &index)| {
            let counters = &self.by_tag.counters[index];
            let Counters { bytes, blocks, failures } = **counters;
            let bytes = Counter::from(bytes);
            let allocations = Counter::from(blocks);
            TagStatistics { tag, bytes, allocations, frees: counters.frees(), failures }
        });
        let by_stream = self.by_stream.iter().enumerate().map(|(slot, of_stream)| {
            let Counters { bytes, blocks, .. } = **of_stream;
            let bytes = Counter::from(bytes);
            let allocations = Counter::from(blocks);
            StreamStatistics { slot, bytes, allocations, frees: of_stream.frees() }
        });
        Statistics {
            bytes: Counter::from(bytes),
            allocations: Counter::from(blocks),
            frees: self.overall.frees(),
            failures,
            by_tag: by_tag.collect(),
            by_stream: by_stream.filter(StreamStatistics::is_used).collect(),
        }
    }
}
