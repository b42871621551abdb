//! Device addresses: the ranges of each device and of virtual memory, and best fit inside.

use std::collections::{BTreeMap, BTreeSet};

/// The first address of device memory: above the low and below the high addresses that a host
/// program maps, so that no device address is a host address.
const BASE: u64 = 0x1000_0000_0000;
/// The bytes of addresses of each device.
const SPAN: u64 = 0x0400_0000_0000;
/// The first address of the ranges that programs reserve and map memory into, above all devices'
/// memory.
const VIRTUAL: std::ops::Range<u64> = 0x3000_0000_0000..0x5000_0000_0000;
/// The maximum number of devices of a universe.
pub(crate) const MAX_DEVICES: usize = 8;
/// The alignment of `cuMemAlloc` on real devices.
pub(crate) const ALIGNMENT: u64 = 512;
/// The size from which allocations begin at a page, as they do on real devices. Programs rely on
/// it: they align inside of such a block, without room for it.
const LARGE: u64 = 1 << 20;
const PAGE: u64 = 2 << 20;
/// The bytes behind each range of device memory that belong to no allocation, so that an overrun is
/// out of bounds. The memory of a pool is one range: its blocks lie side by side, as on a device.
const RED_ZONE: u64 = ALIGNMENT;

/// Returns the device whose memory is at `at`; `None` for host addresses.
pub(crate) fn device_of(at: u64) -> Option<usize> {
    let device = at.checked_sub(BASE)? / SPAN;
    ((device as usize) < MAX_DEVICES).then_some(device as usize)
}

/// Returns whether the address is one that programs reserve and map memory to.
pub(crate) fn is_virtual(at: u64) -> bool {
    VIRTUAL.contains(&at)
}

/// Returns whether the address is not a host address.
pub(crate) fn is_on_device(at: u64) -> bool {
    device_of(at).is_some() || is_virtual(at)
}

/// Returns whether the range is inside of the address space and no byte of it is device memory.
pub(crate) fn is_host_range(at: u64, bytes: u64) -> bool {
    let devices = BASE..VIRTUAL.end;
    at.checked_add(bytes).is_some_and(|end| end <= devices.start || at >= devices.end)
}

/// The free addresses of a device, or those for reservations: ranges that do not touch, by start
/// and by size.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    free: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl AddressSpace {
    pub(crate) fn of_device(device: usize) -> Self {
        let mut space = Self { free: BTreeMap::new(), by_size: BTreeSet::new() };
        space.insert(BASE + device as u64 * SPAN + ALIGNMENT, SPAN - ALIGNMENT);
        space
    }

    /// Makes the addresses that programs reserve.
    pub(crate) fn virtual_ranges() -> Self {
        let mut space = Self { free: BTreeMap::new(), by_size: BTreeSet::new() };
        space.insert(VIRTUAL.start, VIRTUAL.end - VIRTUAL.start);
        space
    }

    /// Takes `bytes` from the smallest free range that holds them at a multiple of `alignment`, a
    /// power of two.
    pub(crate) fn take_aligned(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        let at = self.by_size.range((bytes, 0)..).find_map(|&(len, start)| {
            let at = start.checked_next_multiple_of(alignment)?;
            (bytes <= (start + len).checked_sub(at)?).then_some(at)
        })?;
        self.take_at(at, bytes).then_some(at)
    }

    /// Takes this exact range, if all of it is free.
    pub(crate) fn take_at(&mut self, at: u64, bytes: u64) -> bool {
        let Some((&start, &len)) = self.free.range(..=at).next_back() else { return false };
        let end = start + len;
        if at >= end || bytes > end - at {
            return false;
        }
        self.remove(start);
        for (from, to) in [(start, at), (at + bytes, end)] {
            if from < to {
                self.insert(from, to - from);
            }
        }
        true
    }

    /// Takes `bytes` (a multiple of [`ALIGNMENT`]) from the smallest free range that holds them,
    /// the lowest of several: addresses are reused early, so that a stale address soon belongs to
    /// another block. A red zone follows.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let with_zone = bytes.checked_add(RED_ZONE)?;
        self.take_aligned(with_zone, if bytes >= LARGE { PAGE } else { ALIGNMENT })
    }

    /// Frees what [`AddressSpace::take`] has returned, with the red zone.
    pub(crate) fn release(&mut self, at: u64, bytes: u64) {
        self.free_range(at, bytes + RED_ZONE);
    }

    /// Frees a range.
    pub(crate) fn free_range(&mut self, at: u64, bytes: u64) {
        let mut start = at;
        let mut end = at + bytes;
        if let Some((&before, &len)) = self.free.range(..at).next_back()
            && before + len == at
        {
            self.remove(before);
            start = before;
        }
        end += self.remove(end).unwrap_or(0);
        self.insert(start, end - start);
    }

    fn insert(&mut self, at: u64, len: u64) {
        self.free.insert(at, len);
        self.by_size.insert((len, at));
    }

    fn remove(&mut self, at: u64) -> Option<u64> {
        let len = self.free.remove(&at)?;
        self.by_size.remove(&(len, at));
        Some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ranges_merge_and_are_reused() {
        let mut space = AddressSpace::of_device(1);
        let [a, b, c] = [512, 1024, 512].map(|bytes| space.take(bytes).unwrap());
        assert_eq!([device_of(a), device_of(c)], [Some(1), Some(1)]);
        space.release(a, 512);
        space.release(c, 512);
        space.release(b, 1024);
        assert_eq!((space.free.len(), space.by_size.len()), (1, 1));
        assert_eq!(space.take(2048), Some(a));
        assert_eq!(device_of(0x7fff_0000_0000), None);
    }

    #[test]
    fn large_ranges_begin_at_a_page_and_leave_the_rest_to_small_ones() {
        let mut space = AddressSpace::of_device(0);
        let large = space.take(LARGE).unwrap();
        assert!(large.is_multiple_of(PAGE));
        assert_eq!(space.take(512), Some(BASE + ALIGNMENT));
        assert_eq!(space.take(LARGE), Some(large + PAGE));
    }

    #[test]
    fn virtual_ranges_are_taken_where_asked_and_aligned() {
        let mut space = AddressSpace::virtual_ranges();
        let page = 2 << 20;
        let first = space.take_aligned(page, page).unwrap();
        let aligned = space.take_aligned(page, 1 << 30).unwrap();
        assert!(aligned.is_multiple_of(1 << 30) && aligned != first);
        assert!(!space.take_at(aligned, page) && !space.take_at(aligned - page, 2 * page));
        assert!(space.take_at(aligned - page, page) && space.take_at(aligned + page, page));
        assert_eq!(space.take_aligned(VIRTUAL.end, page), None);
        space.free_range(aligned - page, page);
        space.free_range(aligned, page);
        space.free_range(aligned + page, page);
        space.free_range(first, page);
        assert_eq!((space.free.len(), space.by_size.len()), (1, 1));
        assert!(is_virtual(first) && !is_host_range(first, page) && device_of(first).is_none());
    }
}
