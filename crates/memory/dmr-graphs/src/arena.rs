//! The memory of one capture: ranges of slabs, each free since a moment of the capture.

use std::collections::BTreeMap;

use crate::order::{Moment, Order};

/// The alignment of memory of a graph, in bytes.
pub(crate) const ALIGNMENT: u64 = 256;

/// The slabs of a capture. A range that was freed is used again by work that comes after all that
/// was captured until then.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    slabs: Vec<Slab>,
}

/// Memory that ranges are cut from.
#[derive(Debug)]
struct Slab {
    address: u64,
    bytes: u64,
    /// By address.
    free: BTreeMap<u64, FreeRange>,
    is_used: bool,
}

#[derive(Debug)]
struct FreeRange {
    bytes: u64,
    since: Moment,
}

impl Arena {
    /// Adds a slab, which is free.
    pub(crate) fn add(&mut self, address: u64, bytes: u64) {
        let range = FreeRange { bytes, since: Moment::default() };
        let free = BTreeMap::from([(address, range)]);
        self.slabs.push(Slab { address, bytes, free, is_used: false });
    }

    /// Acquires `bytes` bytes for work on a lane: from the smallest range that it may use. Returns
    /// the address.
    pub(crate) fn acquire(&mut self, bytes: u64, lane: usize, order: &Order) -> Option<u64> {
        let bytes = aligned(bytes)?;
        self.acquire_range(bytes, lane, order).or_else(|| {
            self.slabs.iter_mut().for_each(|slab| slab.merge(lane, order));
            self.acquire_range(bytes, lane, order)
        })
    }

    fn acquire_range(&mut self, bytes: u64, lane: usize, order: &Order) -> Option<u64> {
        let fits =
            |range: &FreeRange| range.bytes >= bytes && order.comes_after(lane, &range.since);
        let ranges = self.slabs.iter_mut().flat_map(|slab| {
            let found = slab.free.iter().filter(|(_, range)| fits(range));
            let best = found.min_by_key(|(_, range)| range.bytes);
            let best = best.map(|(&address, range)| (range.bytes, address));
            best.map(|(size, address)| (size, address, slab))
        });
        let (_, address, slab) = ranges.min_by_key(|&(size, address, _)| (size, address))?;
        let range = slab.free.remove(&address)?;
        if range.bytes > bytes {
            let rest = FreeRange { bytes: range.bytes - bytes, since: range.since };
            slab.free.insert(address + bytes, rest);
        }
        slab.is_used = true;
        Some(address)
    }

    /// Releases memory that was acquired, which is free since this moment.
    pub(crate) fn release(&mut self, address: u64, bytes: u64, since: Moment) {
        let Some(bytes) = aligned(bytes) else { return };
        let holds = |slab: &&mut Slab| (slab.address..slab.address + slab.bytes).contains(&address);
        if let Some(slab) = self.slabs.iter_mut().find(holds) {
            slab.free.insert(address, FreeRange { bytes, since });
        }
    }

    /// Returns the addresses of the slabs that memory was acquired from.
    pub(crate) fn used(&self) -> impl Iterator<Item = u64> {
        self.slabs.iter().filter(|slab| slab.is_used).map(|slab| slab.address)
    }
}

impl Slab {
    /// Merges neighbours that work on a lane may use. A merged range is free since the later moment
    /// of the two, so neighbours that it may not use yet stay apart.
    fn merge(&mut self, lane: usize, order: &Order) {
        let mut merged = BTreeMap::<u64, FreeRange>::new();
        for (address, range) in std::mem::take(&mut self.free) {
            match merged.last_entry() {
                Some(mut last)
                    if last.key() + last.get().bytes == address
                        && order.comes_after(lane, &last.get().since)
                        && order.comes_after(lane, &range.since) =>
                {
                    let last = last.get_mut();
                    last.bytes += range.bytes;
                    last.since.join(&range.since);
                }
                _ => drop(merged.insert(address, range)),
            }
        }
        self.free = merged;
    }
}

/// Returns `bytes`, rounded up; `None` if no slab could have as many.
fn aligned(bytes: u64) -> Option<u64> {
    bytes.max(1).checked_next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::ORIGIN;

    #[test]
    fn a_freed_range_is_used_again_only_by_work_that_comes_after() {
        let mut order = Order::new();
        let mut arena = Arena::default();
        arena.add(0x1000, 1024);
        let first = arena.acquire(512, ORIGIN, &order).unwrap();
        let fork = order.fork();
        arena.release(first, 512, order.now());
        let second = arena.acquire(512, ORIGIN, &order).unwrap();
        assert_ne!(second, first, "work on the fork may use it");
        assert_eq!(arena.acquire(512, fork, &order), None);
        order.join(fork);
        assert_eq!(arena.acquire(500, ORIGIN, &order), Some(first));
        assert_eq!(arena.used().collect::<Vec<_>>(), [0x1000]);
    }

    #[test]
    fn neighbours_are_one_range_again() {
        let order = Order::new();
        let mut arena = Arena::default();
        arena.add(0x1000, 1024);
        let all: Vec<_> = (0..4).map(|_| arena.acquire(200, ORIGIN, &order).unwrap()).collect();
        assert_eq!(arena.acquire(1, ORIGIN, &order), None);
        for at in [1, 3, 0, 2] {
            arena.release(all[at], 200, order.now());
        }
        assert_eq!(arena.acquire(1024, ORIGIN, &order), Some(0x1000));
        assert_eq!(arena.acquire(u64::MAX, ORIGIN, &order), None);
    }
    #[test]
    fn the_rest_of_a_merged_range_is_free_since_the_later_moment() {
        let mut order = Order::new();
        let mut arena = Arena::default();
        arena.add(0x1000, 1024);
        let halves = [0, 1].map(|_| arena.acquire(512, ORIGIN, &order).unwrap());
        arena.release(halves[0], 512, order.now());
        let first = order.fork();
        arena.release(halves[1], 512, order.now());
        let second = order.fork();
        order.join(first);
        assert_eq!(arena.acquire(768, ORIGIN, &order), Some(0x1000));
        assert_eq!(arena.acquire(256, second, &order), None, "it has not seen the first fork");
        assert_eq!(arena.acquire(256, ORIGIN, &order), Some(0x1000 + 768));
    }
}
