//! What is counted, and for whom: over all, for each tag, for each stream, for open scopes.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock};

use dmr_core::process::LeakedInChild;
use dmr_core::sync::{self, lock};
use dmr_core::{AllocTag, DeviceBlock, Process};

use super::meter::{Meter, OwnStep, Peaks, Precision, Totals, Wholes, count};
use super::report::{Counter, Statistics, StreamStatistics, TagStatistics};
use super::scope::{Frames, ScopeStatistics};
use crate::per_thread::PerThread;
use crate::table::Table;

/// All that one resource counts.
///
/// A call counts in the part of its thread, and shares no cache line with another thread except
/// when its part has to be told ([`gauge`](super::gauge)).
#[derive(Debug)]
pub(super) struct Counts {
    made_in: Process,
    precision: Precision,
    /// How many shards have told.
    threads: AtomicI64,
    shards: LeakedInChild<PerThread<Shard>>,
    /// Of threads that are being torn down: one at a time, with the lock.
    late: Shard,
    late_lock: Mutex<()>,
    overall: Wholes,
    by_tag: LeakedInChild<Table<Wholes>>,
    by_stream: LeakedInChild<Table<Wholes>>,
    tags: LeakedInChild<RwLock<Tags>>,
}

/// What is counted of one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    bytes: u64,
    tag: AllocTag,
    stream: usize,
}

impl From<&DeviceBlock> for Item {
    #[inline]
    fn from(block: &DeviceBlock) -> Self {
        let stream = block.alloc_stream().slot();
        Self { bytes: block.bytes() as u64, tag: block.tag(), stream }
    }
}

impl Item {
    /// The `more_bytes` by which a block has grown.
    pub(super) fn growth(block: &DeviceBlock, more_bytes: u64) -> Self {
        Self { bytes: more_bytes, ..Self::from(block) }
    }
}

impl Counts {
    pub(super) fn new(precision: Precision) -> Self {
        Self {
            made_in: Process::current(),
            precision,
            threads: AtomicI64::new(0),
            shards: LeakedInChild::new(PerThread::new()),
            late: Shard::default(),
            late_lock: Mutex::default(),
            overall: Wholes::default(),
            by_tag: LeakedInChild::default(),
            by_stream: LeakedInChild::default(),
            tags: LeakedInChild::default(),
        }
    }

    /// Whether this is a forked child, where locks of the parent may be held for ever. Nothing is
    /// allocated or freed there.
    fn is_forked(&self) -> bool {
        !self.made_in.is_current()
    }

    /// A block was handed out.
    // Always inlined: an item that is passed through memory is read before it has reached the cache.
    #[inline(always)]
    pub(super) fn allocated(&self, item: Item) {
        match self.shards.own() {
            Some(shard) => self.allocated_in(shard, item),
            None => self.allocated_late(item),
        }
    }

    /// A block was given back.
    #[inline(always)]
    pub(super) fn freed(&self, item: Item) {
        match self.shards.own() {
            Some(shard) => self.freed_in(shard, item),
            None => self.freed_late(item),
        }
    }

    /// A block has grown by the bytes of `item`.
    pub(super) fn grown(&self, item: Item) {
        self.with(|shard| self.grown_in(shard, item));
    }

    #[cold]
    fn allocated_late(&self, item: Item) {
        self.late(|shard| self.allocated_in(shard, item));
    }

    #[cold]
    fn freed_late(&self, item: Item) {
        self.late(|shard| self.freed_in(shard, item));
    }

    /// Calls `f` with the thread's shard. `f` must not call this.
    fn with<A>(&self, f: impl FnOnce(&Shard) -> A) -> A {
        match self.shards.own() {
            Some(shard) => f(shard),
            None => self.late(f),
        }
    }

    #[cold]
    #[inline(never)]
    fn late<A>(&self, f: impl FnOnce(&Shard) -> A) -> A {
        let _only_one = lock(&self.late_lock);
        f(&self.late)
    }

    /// The shards of all threads, also of those that have ended.
    fn all_shards(&self) -> impl Iterator<Item = &Shard> + Clone {
        self.shards.iter().chain([&self.late])
    }

    #[inline(always)]
    fn allocated_in(&self, shard: &Shard, item: Item) {
        let (bytes, tag) = (item.bytes, self.index_of(shard, item.tag));
        let step = shard.step.get().for_blocks_of(bytes);
        // All are counted, whatever the first answers.
        let is_due = shard.overall.add(bytes, step)
            | shard.by_tag.get_or_make(tag).meter.add(bytes, step)
            | shard.by_stream.get_or_make(item.stream).add(bytes, step);
        if is_due {
            self.tell(shard, tag, item.stream);
        }
        if shard.has_scopes() {
            shard.allocated_in_scope(bytes);
        }
    }

    fn grown_in(&self, shard: &Shard, item: Item) {
        let (more_bytes, tag) = (item.bytes, self.index_of(shard, item.tag));
        let step = shard.step.get().for_blocks_of(more_bytes);
        let is_due = shard.overall.grow(more_bytes, step)
            | shard.by_tag.get_or_make(tag).meter.grow(more_bytes, step)
            | shard.by_stream.get_or_make(item.stream).grow(more_bytes, step);
        if is_due {
            self.tell(shard, tag, item.stream);
        }
        if shard.has_scopes() {
            shard.frames().grown(more_bytes);
        }
    }

    #[inline(always)]
    fn freed_in(&self, shard: &Shard, item: Item) {
        let (bytes, tag) = (item.bytes, self.index_of(shard, item.tag));
        let step = shard.step.get().for_blocks_of(bytes);
        let is_due = shard.overall.remove(bytes, step)
            | shard.by_tag.get_or_make(tag).meter.remove(bytes, step)
            | shard.by_stream.get_or_make(item.stream).remove(bytes, step);
        if is_due {
            self.tell(shard, tag, item.stream);
        }
        if shard.has_scopes() {
            shard.freed_in_scope(bytes);
        }
    }

    #[cold]
    fn tell(&self, shard: &Shard, tag: usize, stream: usize) {
        if !shard.has_told.swap(true, Ordering::Relaxed) {
            self.threads.fetch_add(1, Ordering::Relaxed);
        }
        let step = shard.step.get();
        let (of_tag, of_stream) =
            (shard.by_tag.get_or_make(tag), shard.by_stream.get_or_make(stream));
        shard.overall.tell_what_is_due(step, &self.overall);
        of_tag.meter.peaks.tell_what_is_due(step, self.by_tag.get_or_make(tag));
        of_stream.peaks.tell_what_is_due(step, self.by_stream.get_or_make(stream));
        shard.step.renew(self.precision, &self.overall, self.threads.load(Ordering::Relaxed));
    }

    /// An allocation failed.
    #[cold]
    pub(super) fn failed(&self, tag: AllocTag) {
        if self.is_forked() {
            return;
        }
        self.with(|shard| {
            let of_tag = shard.by_tag.get_or_make(self.index_of(shard, tag));
            count(&of_tag.failures, 1);
            if shard.has_scopes() {
                shard.frames().failed();
            }
        });
    }

    /// Opens a scope of the calling thread; answers its number, unless the thread is ending.
    pub(super) fn push(&self, tag: AllocTag) -> Option<u64> {
        if self.is_forked() {
            return None;
        }
        self.shards.own().map(|shard| shard.change_frames(|frames| frames.push(tag)))
    }

    /// Closes a scope of the calling thread.
    pub(super) fn pop(&self, number: u64) -> Option<ScopeStatistics> {
        if self.is_forked() {
            return None;
        }
        self.with(|shard| shard.change_frames(|frames| frames.pop(number)))
    }

    /// What a scope of the calling thread has counted so far.
    pub(super) fn peek(&self, number: u64) -> Option<ScopeStatistics> {
        if self.is_forked() {
            return None;
        }
        self.with(|shard| shard.frames().peek(number))
    }

    pub(super) fn snapshot(&self) -> Statistics {
        if self.is_forked() {
            return Statistics::default();
        }
        // Over all there are only peaks: the sums are those of the tags.
        let peaks = self.overall.peaks(self.all_shards().map(|shard| &shard.overall));
        let meters = self.all_shards().flat_map(|shard| shard.by_tag.iter());
        let totals: Totals = meters.map(|(_, of_tag)| of_tag.meter.totals()).sum();
        let [bytes, allocations] = totals.counters(peaks);
        let (mut by_tag, mut by_stream) = (self.tag_statistics(), self.stream_statistics());
        let failures = by_tag.iter().map(|of_tag| of_tag.failures).sum();
        by_tag.sort_by_key(|tag| (Reverse(tag.bytes.current), tag.tag));
        by_stream.sort_by_key(|stream| (Reverse(stream.bytes.current), stream.slot));
        Statistics { bytes, allocations, frees: totals.frees, failures, by_tag, by_stream }
    }

    fn tag_statistics(&self) -> Vec<TagStatistics> {
        let tags = sync::read(&self.tags).names.clone();
        let statistics = tags.into_iter().enumerate().map(|(index, tag)| {
            let of_tag = self.all_shards().filter_map(|shard| shard.by_tag.get(index));
            let failures = of_tag.clone().map(|of_tag| of_tag.failures.load(Ordering::Relaxed));
            let meters = of_tag.map(|of_tag| &of_tag.meter);
            let (totals, [bytes, allocations]) = read(self.by_tag.get_or_make(index), meters);
            let (frees, failures) = (totals.frees, failures.sum());
            TagStatistics { tag, bytes, allocations, frees, failures }
        });
        statistics.collect()
    }

    fn stream_statistics(&self) -> Vec<StreamStatistics> {
        let slots = self.all_shards().flat_map(|shard| shard.by_stream.iter());
        let used = slots.filter(|(_, of_stream)| of_stream.is_used()).map(|(slot, _)| slot);
        let used: BTreeSet<usize> = used.collect();
        let statistics = used.into_iter().map(|slot| {
            let meters = self.all_shards().filter_map(|shard| shard.by_stream.get(slot));
            let wholes = self.by_stream.get_or_make(slot);
            let (Totals { frees, .. }, [bytes, allocations]) = read(wholes, meters);
            StreamStatistics { slot, bytes, allocations, frees }
        });
        statistics.collect()
    }

    /// Starts all peaks again from what is current.
    pub(super) fn reset_peaks(&self) {
        if self.is_forked() {
            return;
        }
        self.with(|shard| {
            shard.overall.tell(&self.overall);
            for (index, of_tag) in shard.by_tag.iter() {
                of_tag.meter.peaks.tell(self.by_tag.get_or_make(index));
            }
            for (slot, of_stream) in shard.by_stream.iter() {
                of_stream.peaks.tell(self.by_stream.get_or_make(slot));
            }
        });
        self.overall.reset_peaks();
        let (tags, streams) = (self.by_tag.iter(), self.by_stream.iter());
        tags.chain(streams).for_each(|(_, wholes)| wholes.reset_peaks());
    }

    /// The number of a tag.
    #[inline]
    fn index_of(&self, shard: &Shard, tag: AllocTag) -> usize {
        let (address, len) = (tag.name().as_ptr().addr(), tag.name().len());
        let hint = &shard.hints[hash(address)];
        let is_hit = hint.address.load(Ordering::Relaxed) == address
            && hint.len.load(Ordering::Relaxed) == len;
        if is_hit { hint.index.load(Ordering::Relaxed) } else { self.look_up(hint, tag) }
    }

    #[cold]
    fn look_up(&self, hint: &Hint, tag: AllocTag) -> usize {
        let known = sync::read(&self.tags);
        let index = known.indices.get(&tag).copied();
        drop(known);
        let index = index.unwrap_or_else(|| sync::write(&self.tags).index_of(tag));
        hint.address.store(tag.name().as_ptr().addr(), Ordering::Relaxed);
        hint.len.store(tag.name().len(), Ordering::Relaxed);
        hint.index.store(index, Ordering::Relaxed);
        index
    }
}

/// What these parts come to.
fn read<'a>(
    wholes: &Wholes,
    meters: impl Iterator<Item = &'a Meter> + Clone,
) -> (Totals, [Counter; 2]) {
    let peaks = wholes.peaks(meters.clone().map(|meter| &meter.peaks));
    let totals: Totals = meters.map(Meter::totals).sum();
    (totals, totals.counters(peaks))
}

/// The part of one thread.
#[derive(Debug)]
struct Shard {
    is_scoped: AtomicBool,
    has_told: AtomicBool,
    step: OwnStep,
    overall: Peaks,
    hints: [Hint; HINTS],
    by_tag: Table<OfTag>,
    by_stream: Table<Meter>,
    frames: Mutex<Frames>,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            is_scoped: AtomicBool::new(false),
            has_told: AtomicBool::new(false),
            step: OwnStep::default(),
            overall: Peaks::default(),
            hints: std::array::from_fn(|_| Hint::default()),
            by_tag: Table::new(),
            by_stream: Table::new(),
            frames: Mutex::default(),
        }
    }
}

impl Shard {
    #[inline]
    fn has_scopes(&self) -> bool {
        self.is_scoped.load(Ordering::Relaxed)
    }

    #[inline(never)]
    fn allocated_in_scope(&self, bytes: u64) {
        self.frames().allocated(bytes);
    }

    #[inline(never)]
    fn freed_in_scope(&self, bytes: u64) {
        self.frames().freed(bytes);
    }

    fn frames(&self) -> MutexGuard<'_, Frames> {
        lock(&self.frames)
    }

    fn change_frames<A>(&self, change: impl FnOnce(&mut Frames) -> A) -> A {
        let mut frames = self.frames();
        let answer = change(&mut frames);
        self.is_scoped.store(!frames.is_empty(), Ordering::Relaxed);
        answer
    }
}

#[derive(Debug, Default)]
struct OfTag {
    meter: Meter,
    failures: AtomicU64,
}

/// Where the number of a name is found without a lock: by where the name is.
///
/// Only its thread writes it. Names are `'static`, so an address and a length are one name.
#[derive(Debug, Default)]
struct Hint {
    address: AtomicUsize,
    len: AtomicUsize,
    index: AtomicUsize,
}

const HINTS: usize = 128;

/// Spreads addresses over the hints, whatever they are aligned to.
#[inline]
const fn hash(address: usize) -> usize {
    let spread = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (spread >> (64 - HINTS.ilog2())) as usize
}

/// All tags that were seen, numbered from 0.
#[derive(Debug, Default)]
struct Tags {
    names: Vec<AllocTag>,
    indices: HashMap<AllocTag, usize>,
}

impl Tags {
    fn index_of(&mut self, tag: AllocTag) -> usize {
        *self.indices.entry(tag).or_insert_with(|| {
            self.names.push(tag);
            self.names.len() - 1
        })
    }
}
