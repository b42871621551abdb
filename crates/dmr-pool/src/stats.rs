//! What a pool holds, in numbers and as a map.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;

use dmr_core::error::{Holder, PoolShortage};
use dmr_core::{AllocTag, DeviceMemoryResource, StreamId};

use crate::PoolResource;
use crate::arena::State;
use crate::heap::{ChunkId, UNIT};

/// What a pool holds. Bytes are as the pool cuts memory, so a block counts with what its size was
/// rounded up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Taken from upstream.
    pub reserved: u64,
    /// The most that ever was.
    pub reserved_high: u64,
    /// What upstream has from the driver: `reserved`, free memory that upstream keeps, and what
    /// upstream has given to others. [`trim_to`](DeviceMemoryResource::trim_to) bounds this.
    pub upstream_reserved: u64,
    /// In blocks: handed out, or given back while a window was open.
    pub in_use: u64,
    /// Free: for the stream that had it first, at once.
    pub cached: u64,
    /// Free once other streams are known to be done with it, or waited for.
    pub pending: u64,
    /// The largest free chunk.
    pub largest_free: u64,
    /// How many pieces of memory were taken from upstream: segments, or pages.
    pub segments: usize,
    /// Bytes of the pages that the pool maps itself; 0 if upstream hands out blocks only, or the
    /// configuration asks for none.
    pub page_size: u64,
    /// How many streams have memory of their own.
    pub arenas: usize,
    /// Free chunks by size: one line for each power of two that there are any of.
    pub free_by_size: Vec<FreeChunks>,
}

/// The free chunks of some sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FreeChunks {
    /// They have at least so many bytes, and less than twice as many.
    pub from: u64,
    /// How many there are.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A piece of a pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapRegion {
    /// Where it starts.
    pub address: u64,
    /// How many bytes it has.
    pub bytes: u64,
    /// What it is used for.
    pub state: RegionState,
    /// The stream that had it first.
    pub stream: StreamId,
}

/// What a piece of a pool's memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegionState {
    /// A block.
    InUse,
    /// Free.
    Cached,
    /// Free once other streams are done with it.
    Pending,
}

impl PoolStats {
    /// The share of the free memory that is not in its largest piece, from 0 to 1.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        if self.cached == 0 { 0.0 } else { 1.0 - self.largest_free as f64 / self.cached as f64 }
    }
}

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// What the pool holds. Goes over all of it: for reports, not for hot paths. Numbers of
    /// different streams are read one after the other. In a forked child, nothing.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        if self.device().is_forked() {
            return PoolStats::default();
        }
        PoolStats { upstream_reserved: self.upstream.usage().reserved, ..self.own_stats() }
    }

    /// Returns the stats except for `upstream_reserved`.
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
        }
        let mut by_size = [(0_u64, 0_u64); u64::BITS as usize];
        for arena in self.arenas() {
            let ending = self.ending_in(arena);
            let state = arena.lock();
            stats.arenas += 1;
            stats.segments += state.segments.len() + state.mapped_pages();
            for (_, _, bytes, region) in regions(&state, ending) {
                match region {
                    RegionState::InUse => stats.in_use += bytes,
                    RegionState::Pending => stats.pending += bytes,
                    RegionState::Cached => {
                        stats.cached += bytes;
                        stats.largest_free = stats.largest_free.max(bytes);
                        let (chunks, sum) = &mut by_size[bytes.ilog2() as usize];
                        (*chunks, *sum) = (*chunks + 1, *sum + bytes);
                    }
                }
            }
        }
        let lines = (0_u32..).zip(by_size).filter(|(_, (chunks, _))| *chunks > 0);
        stats.free_by_size = lines
            .map(|(power, (chunks, bytes))| FreeChunks { from: 1 << power, chunks, bytes })
            .collect();
        stats
    }

    /// Returns what the pool keeps, and which tags hold the most of it: what an error says when
    /// there is no room. In a forked child, nothing.
    #[must_use]
    #[cold]
    pub fn shortage(&self) -> PoolShortage {
        if self.device().is_forked() {
            return PoolShortage::default();
        }
        let PoolStats { reserved, largest_free, cached, pending, .. } = self.own_stats();
        let mut by_tag = BTreeMap::<AllocTag, (u64, u64)>::new();
        for arena in self.arenas() {
            let ending = self.ending_in(arena);
            let state = arena.lock();
            let pieces = regions(&state, ending);
            for (id, _, bytes, _) in pieces.filter(|it| it.3 == RegionState::InUse) {
                let (sum, blocks) = by_tag.entry(state.tag(id)).or_default();
                (*sum, *blocks) = (*sum + bytes, *blocks + 1);
            }
        }
        let holder = |(tag, (bytes, blocks))| Holder { tag, bytes, blocks };
        let mut holders: Vec<_> = by_tag.into_iter().map(holder).collect();
        holders.sort_by_key(|holder| Reverse(holder.bytes));
        holders.truncate(PoolShortage::HOLDERS);
        let holders = holders.into_boxed_slice();
        PoolShortage { reserved, largest_free, cached, pending, holders }
    }

    /// Every piece of the pool's memory, by address. In a forked child, none.
    #[must_use]
    pub fn heap_map(&self) -> Vec<HeapRegion> {
        if self.device().is_forked() {
            return Vec::new();
        }
        let mut map: Vec<_> = self
            .arenas()
            .flat_map(|arena| {
                let (stream, ending) = (arena.home, self.ending_in(arena));
                let pieces: Vec<_> = regions(&arena.lock(), ending).collect();
                pieces.into_iter().map(move |(_, address, bytes, state)| HeapRegion {
                    address,
                    bytes,
                    state,
                    stream,
                })
            })
            .collect();
        map.sort_unstable_by_key(|region| region.address);
        map
    }
}

/// Name, address, bytes and use of each chunk of an arena, of which these are pending, too.
fn regions(
    state: &State,
    mut pending: HashSet<ChunkId>,
) -> impl Iterator<Item = (ChunkId, u64, u64, RegionState)> {
    pending.extend(state.pending.iter().map(|pending| pending.chunk));
    let apart = state.apart.values().flatten().copied();
    let free: HashSet<_> = apart.chain(state.heap.kept()).collect();
    state.heap.chunks().map(move |(id, address, units, is_free)| {
        let region = if is_free || free.contains(&id) {
            RegionState::Cached
        } else if pending.contains(&id) {
            RegionState::Pending
        } else {
            RegionState::InUse
        };
        (id, address, u64::from(units) * UNIT, region)
    })
}
