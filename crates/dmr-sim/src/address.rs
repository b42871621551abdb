//! Device addresses: where each device's memory lies, and first fit inside it.

use std::collections::BTreeMap;

/// Device memory lies here: above what a host program maps low, below where it maps high, so
/// that no device address is ever a host address.
const BASE: u64 = 0x1000_0000_0000;
/// Room for each device.
const SPAN: u64 = 0x0400_0000_0000;
/// How many devices a universe can have.
pub(crate) const MAX_DEVICES: usize = 8;
/// What `cuMemAlloc` aligns to on real devices.
pub(crate) const ALIGNMENT: u64 = 512;

/// The device whose memory lies at `at`; `None` for host addresses.
pub(crate) fn device_of(at: u64) -> Option<usize> {
    let device = at.checked_sub(BASE)? / SPAN;
    ((device as usize) < MAX_DEVICES).then_some(device as usize)
}

/// The free addresses of a device.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    free: BTreeMap<u64, u64>,
}

impl AddressSpace {
    pub(crate) fn of_device(device: usize) -> Self {
        Self { free: BTreeMap::from([(BASE + device as u64 * SPAN + ALIGNMENT, SPAN - ALIGNMENT)]) }
    }

    /// The lowest free range of `bytes` (a multiple of [`ALIGNMENT`]): addresses come back soon,
    /// so that a stale one is soon another's.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&at, &len) = self.free.iter().find(|(_, len)| **len >= bytes)?;
        self.free.remove(&at);
        if len > bytes {
            self.free.insert(at + bytes, len - bytes);
        }
        Some(at)
    }

    /// Gives a range back.
    pub(crate) fn give_back(&mut self, at: u64, bytes: u64) {
        let (mut start, mut end) = (at, at + bytes);
        if let Some((&before, &len)) = self.free.range(..at).next_back()
            && before + len == at
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(len) = self.free.remove(&end) {
            end += len;
        }
        self.free.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ranges_merge_and_the_lowest_is_reused() {
        let mut space = AddressSpace::of_device(1);
        let [a, b, c] = [512, 1024, 512].map(|bytes| space.take(bytes).unwrap());
        assert_eq!([device_of(a), device_of(c)], [Some(1), Some(1)]);
        space.give_back(a, 512);
        space.give_back(c, 512);
        space.give_back(b, 1024);
        assert_eq!(space.free.len(), 1);
        assert_eq!(space.take(2048), Some(a));
        assert_eq!(device_of(0x7fff_0000_0000), None);
    }
}
