//! Accesses of a kernel whose footprint is recorded: whether they happen, and what they touch.

use crate::abi::{Code, ERROR_ILLEGAL_ADDRESS};
use crate::access::{AccessKind, AddressRange, KernelSite};
use crate::kernel::{Lanes, Recording};
use crate::memory::{LateFree, LateFrees, MemoryMap, Reach, address::is_virtual};

/// The recorder of one launch that runs.
pub(crate) struct Recorder<'a> {
    present: &'a MemoryMap,
    freed: &'a LateFrees,
    by: Reach<'a>,
    /// The allocation that was accessed last.
    last: Allocation,
    pub(crate) recording: Recording,
    pub(crate) site: Option<KernelSite>,
    /// The bytes of each lane of an access; 0 if one thread makes all of it.
    pub(crate) lane_bytes: u32,
    /// The sticky error that the device has from now on.
    pub(crate) fault: Option<Code>,
}

/// An allocation, and whether the device can read and write it.
#[derive(Clone, Copy, Default)]
struct Allocation {
    range: AddressRange,
    reads: bool,
    writes: bool,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(present: &'a MemoryMap, freed: &'a LateFrees, by: Reach<'a>) -> Self {
        let last = Allocation::default();
        let recording = Recording::default();
        Self { present, freed, by, last, recording, site: None, lane_bytes: 0, fault: None }
    }

    /// Records an access, and returns whether it happens: if all its bytes are in one live block
    /// that the device can access. Of an access that does not, at most a page is recorded.
    pub(crate) fn permits(&mut self, ptr: u64, len: u64, kind: AccessKind) -> bool {
        const PAGE: u64 = 4096;
        // After a fault the kernel does nothing any more.
        let happens = self.fault.is_none() && self.reaches(ptr, len, kind.writes());
        let bytes = if happens { len } else { len.min(self.reachable(ptr, len) + PAGE) };
        let lanes = self.site.map(|site| Lanes { first: site, bytes: self.lane_bytes });
        self.recording.touch(ptr, ptr.saturating_add(bytes), kind, lanes);
        happens
    }

    /// Returns whether the launch has changed these bytes by atomic operations before, and still
    /// can: then another one adds nothing to the recording.
    pub(crate) fn has_changed(&mut self, ptr: u64, len: u64) -> bool {
        self.fault.is_none()
            && self.recording.has_changed(ptr, ptr.saturating_add(len))
            && self.reaches(ptr, len, false)
            && self.reaches(ptr, len, true)
    }

    pub(crate) fn reaches(&mut self, ptr: u64, len: u64, writes: bool) -> bool {
        let Some(end) = ptr.checked_add(len) else { return false };
        if len == 0 {
            return false;
        }
        if is_virtual(ptr) {
            let reaches = self.present.mappings.reachable(ptr, len, self.by, writes) == len;
            if !reaches {
                self.fault.get_or_insert(ERROR_ILLEGAL_ADDRESS);
            }
            return reaches;
        }
        if ptr < self.last.range.start() || end > self.last.range.end() {
            let Some(found) = self.allocation_around(ptr, len) else { return false };
            self.last = found;
        }
        if writes { self.last.writes } else { self.last.reads }
    }

    /// Returns the bytes from `ptr` to the end of its allocation, at most `len`.
    fn reachable(&self, ptr: u64, len: u64) -> u64 {
        self.allocation_around(ptr, 1).map_or(0, |found| len.min(found.range.end() - ptr))
    }

    /// Returns the allocation that contains `len` bytes at `ptr`: a live one, or memory that was
    /// freed after the launch was submitted. Its address can belong to a smaller allocation now.
    fn allocation_around(&self, ptr: u64, len: u64) -> Option<Allocation> {
        let live = self.present.allocation_around(ptr);
        let live = live.map(|(start, found)| LateFree {
            range: AddressRange::new(start, found.bytes),
            home: found.home,
        });
        let bytes = AddressRange::new(ptr, len);
        let freed = || self.freed.around(bytes);
        let found = live.filter(|live| live.range.holds(bytes)).or_else(freed)?;
        let can = |writes| self.present.can_reach(found.home, self.by, writes);
        Some(Allocation { range: found.range, reads: can(false), writes: can(true) })
    }
}
