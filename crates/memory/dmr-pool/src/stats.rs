//! Reports of a pool's memory: statistics, the map, and the shortage in errors.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;

use dmr_core::error::{Holder, PoolShortage};
use dmr_core::size::human_bytes;
use dmr_core::{AllocTag, DeviceMemoryResource, StreamId, Usage};

use crate::PoolResource;
use crate::arena::{Arena, State};
use crate::heap::{ChunkReport, RegionState, UNIT};
use crate::ladder::StepCounts;
use crate::pages::Pages;

/// The memory of a pool. A block counts with the bytes that its size was rounded up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes that the pool has reserved from upstream.
    pub reserved: u64,
    /// The most bytes that were ever reserved.
    pub reserved_high: u64,
    /// Bytes that upstream has reserved from the driver: `reserved`, free memory of upstream, and
    /// the memory of its other users. [`trim_to`](DeviceMemoryResource::trim_to) bounds this.
    pub upstream_reserved: u64,
    /// Bytes of blocks: live, or deallocated while a window was open.
    pub in_use: u64,
    /// Bytes of free chunks, which the stream of their arena may use at once.
    pub cached: u64,
    /// Bytes of pending chunks: deallocated, and perhaps still used by other streams.
    pub pending: u64,
    /// Bytes of the largest free chunk.
    pub largest_free: u64,
    /// The number of segments or pages that the pool has reserved from upstream.
    pub segments: usize,
    /// Bytes of the pages that the pool maps itself; 0 if upstream has blocks only, or the
    /// configuration asks for blocks.
    pub page_size: u64,
    /// The number of streams that have memory of their own.
    pub arenas: usize,
    /// Free chunks by size: one element for each power of two, without the empty ones.
    pub free_by_size: Vec<FreeChunks>,
    /// The steps in which chunks were found that a stream's own arena did not have free.
    pub steps: StepCounts,
}

/// The free chunks of some sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FreeChunks {
    /// The least size of these chunks in bytes. Each is smaller than twice that.
    pub from: u64,
    /// The number of chunks.
    pub chunks: u64,
    /// The bytes of all of them.
    pub bytes: u64,
}

/// A chunk of a pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapRegion {
    /// The address of its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its state.
    pub state: RegionState,
    /// The stream that was the first to have it.
    pub stream: StreamId,
    /// The tag of its block, if it is in use; else [`UNTAGGED`](AllocTag::UNTAGGED).
    pub tag: AllocTag,
    /// It is the first chunk of memory that the pool has from upstream as a whole. The memory
    /// before it may have the address before, and is returned without it.
    pub is_first: bool,
}

/// The memory of a pool, for an error.
#[derive(Clone, Debug)]
pub(crate) struct PoolReport {
    pub(crate) usage: Usage,
    pub(crate) shortage: PoolShortage,
}

impl PoolStats {
    /// Returns the share of the free bytes that are not in the largest free chunk, from 0 to 1.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        if self.cached == 0 { 0.0 } else { 1.0 - self.largest_free as f64 / self.cached as f64 }
    }
}

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Returns the statistics of the pool. Looks at every chunk: for reports, not for hot paths.
    /// Memory that other threads allocate and free meanwhile may be counted twice, or not at all.
    /// Returns zeros in a forked child.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        if self.device().is_forked() {
            return PoolStats::default();
        }
        let upstream_reserved = self.upstream.usage().reserved;
        PoolStats { upstream_reserved, ..self.own_stats() }
    }

    /// Returns the usage except for `reserved`. In a forked child, nothing.
    pub(crate) fn own_usage(&self) -> Usage {
        let mut usage = Usage::default();
        // Another thread may have held a lock when the process was forked.
        if self.device().is_forked() {
            return usage;
        }
        for arena in self.arenas() {
            let counts = arena.lock().counts;
            usage.live += counts.live;
            usage.retired += counts.retired;
            usage.total_allocated += counts.allocated;
            usage.total_freed += counts.allocated - counts.live - counts.retired;
        }
        usage
    }

    /// Returns the statistics without `upstream_reserved`.
    fn own_stats(&self) -> PoolStats {
        let mut stats = PoolStats {
            reserved: self.reserved.load(Ordering::Relaxed),
            reserved_high: self.reserved_high(),
            ..PoolStats::default()
        };
        if let Some(pages) = &self.pages {
            stats.page_size = pages.size;
            stats.segments = (pages.spare_bytes() / pages.size) as usize;
            stats.cached = pages.spare_bytes();
            stats.steps.pages_moved = pages.moved();
        }
        let mut by_size = [FreeChunks { from: 0, chunks: 0, bytes: 0 }; u64::BITS as usize];
        for arena in self.arenas() {
            stats.arenas += 1;
            stats.segments += {
                let state = arena.lock();
                stats.steps.add(&state.steps);
                state.segments()
            };
            self.visit_chunks(arena, 1, |_, ChunkReport { bytes, state, .. }| match state {
                RegionState::InUse => stats.in_use += bytes,
                RegionState::Pending => stats.pending += bytes,
                RegionState::Cached => {
                    stats.cached += bytes;
                    stats.largest_free = stats.largest_free.max(bytes);
                    let line = &mut by_size[bytes.ilog2() as usize];
                    line.from = 1 << bytes.ilog2();
                    line.chunks += 1;
                    line.bytes += bytes;
                }
            });
        }
        stats.free_by_size = by_size.into_iter().filter(|line| line.chunks > 0).collect();
        stats
    }

    /// Returns the reserved, free and pending bytes, and the tags that hold the most. Returns zeros
    /// in a forked child.
    #[must_use]
    pub fn shortage(&self) -> PoolShortage {
        self.shortage_by(usize::MAX)
    }

    /// Returns the [shortage](Self::shortage) for an error. In an arena of many thousands of
    /// chunks, the bytes of the tags are an estimate, so that a refusal takes no longer.
    #[cold]
    pub(crate) fn estimated_shortage(&self) -> PoolShortage {
        self.shortage_by(SAMPLE)
    }

    /// Returns the shortage, estimated from about `sample` chunks.
    fn shortage_by(&self, sample: usize) -> PoolShortage {
        let mut shortage = PoolShortage::default();
        if self.device().is_forked() {
            return shortage;
        }
        shortage.reserved = self.reserved.load(Ordering::Relaxed);
        shortage.cached = self.pages.as_ref().map_or(0, Pages::spare_bytes);
        let arenas = self.arenas().count().max(1);
        let mut by_tag = BTreeMap::<AllocTag, Holder>::new();
        for arena in self.arenas() {
            let records = {
                let state = arena.lock();
                shortage.cached += state.heap.cached_units() * UNIT;
                shortage.pending += state.pending_units * UNIT;
                let largest = u64::from(state.heap.largest_free()) * UNIT;
                shortage.largest_free = shortage.largest_free.max(largest);
                state.heap.records()
            };
            let step = records.div_ceil(sample.div_ceil(arenas));
            self.visit_chunks(arena, step, |state, report| match report.state {
                RegionState::InUse => {
                    let tag = state.heap.tag(report.chunk);
                    let holder = by_tag.entry(tag).or_insert(Holder { tag, bytes: 0, blocks: 0 });
                    holder.bytes += report.bytes * step as u64;
                    holder.blocks += step as u64;
                }
                RegionState::Pending if state.heap.is_acquired(report.chunk) => {
                    // The block was freed, but not its region: the observer does not follow
                    // streams.
                    shortage.pending += report.bytes * step as u64;
                }
                _ => {}
            });
        }
        let mut holders: Vec<_> = by_tag.into_values().collect();
        holders.sort_by_key(|holder| Reverse(holder.bytes));
        holders.truncate(PoolShortage::HOLDERS);
        shortage.holders = holders.into_boxed_slice();
        shortage
    }

    /// Returns every chunk of the pool's memory, by address. Chunks that other threads allocate and
    /// free meanwhile may be missing. Returns none in a forked child.
    #[must_use]
    pub fn heap_map(&self) -> Vec<HeapRegion> {
        if self.device().is_forked() {
            return Vec::new();
        }
        let mut map = Vec::new();
        for arena in self.arenas() {
            self.visit_chunks(arena, 1, |locked, report| {
                let ChunkReport { address, bytes, state, chunk, is_first } = report;
                let tag = match state {
                    RegionState::InUse => locked.heap.tag(chunk),
                    RegionState::Pending | RegionState::Cached => AllocTag::UNTAGGED,
                };
                map.push(HeapRegion { address, bytes, state, stream: arena.home, tag, is_first });
            });
        }
        map.sort_unstable_by_key(|region| region.address);
        // A chunk that was cut or merged meanwhile may have been visited before and after.
        let mut end = 0;
        map.retain(|region| {
            let is_new = region.address >= end;
            end = end.max(region.address + region.bytes);
            is_new
        });
        map
    }

    /// Calls `act`, with the arena locked, for the chunks of an arena that have memory: for those
    /// in one of each `step` records. Unlocks the arena now and then.
    fn visit_chunks(&self, arena: &Arena, step: usize, mut act: impl FnMut(&State, ChunkReport)) {
        let freed = self.freed_regions_in(arena);
        let mut from = 1;
        let most = AT_A_TIME.saturating_mul(step);
        loop {
            let state = arena.lock();
            for mut report in state.heap.reports(from, from.saturating_add(most), step) {
                if freed.contains(&report.chunk) {
                    report.state = RegionState::Pending;
                }
                act(&state, report);
            }
            from = from.saturating_add(most);
            if from >= state.heap.records() {
                return;
            }
        }
    }
}

/// The most chunk records that are looked at while an arena is locked.
const AT_A_TIME: usize = 4096;
/// About the number of chunks that the report of a refused allocation looks at: many threads may be
/// refused at a time, and each chunk is in another one's cache.
const SAMPLE: usize = 256;

/// `Pool(Async(device 0))`, or with pages `Pool(pages of 8 MiB, Virtual(device 0))`.
impl<U: DeviceMemoryResource> fmt::Display for PoolResource<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pages {
            None => write!(f, "Pool({:?})", self.upstream),
            Some(pages) => {
                write!(f, "Pool(pages of {}, {:?})", human_bytes(pages.size), self.upstream)
            }
        }
    }
}

impl<U: DeviceMemoryResource> fmt::Debug for PoolResource<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
