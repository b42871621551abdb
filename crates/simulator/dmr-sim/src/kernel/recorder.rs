//! Accesses of a kernel whose footprint is recorded: whether they happen, and what they touch.

use crate::abi::{Code, ERROR_ILLEGAL_ADDRESS};
use crate::access::recording::{KernelSite, Lanes, Recording, Touch};
use crate::machine::checks::CheckLog;
use crate::memory::address::is_virtual;
use crate::memory::mapping::Reach;
use crate::memory::memory_map::{Home, MemoryMap};

/// The recorder of one launch that runs.
pub(crate) struct Recorder<'a> {
    present: &'a MemoryMap,
    log: &'a CheckLog,
    by: Reach<'a>,
    /// The block that was accessed last.
    block: Block,
    pub(crate) recording: Recording,
    pub(crate) site: Option<KernelSite>,
    /// The bytes of each lane of an access; 0 if one thread makes all of it.
    pub(crate) lane_bytes: u32,
    /// The sticky error that the device has from now on.
    pub(crate) fault: Option<Code>,
}

/// A block of memory, and whether the device can read and write it.
#[derive(Clone, Copy, Default)]
struct Block {
    start: u64,
    end: u64,
    reads: bool,
    writes: bool,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(present: &'a MemoryMap, log: &'a CheckLog, by: Reach<'a>) -> Self {
        let block = Block::default();
        let recording = Recording::default();
        Self { present, log, by, block, recording, site: None, lane_bytes: 0, fault: None }
    }

    /// Records an access, and returns whether it happens: if all its bytes are in one live block
    /// that the device can access. Of an access that does not, at most a page is recorded.
    pub(crate) fn permits(&mut self, ptr: u64, len: u64, touch: Touch) -> bool {
        const PAGE: u64 = 4096;
        // After a fault the kernel does nothing any more.
        let happens = self.fault.is_none() && self.reaches(ptr, len, touch.writes());
        let bytes = if happens { len } else { len.min(self.reachable(ptr, len) + PAGE) };
        let lanes = self.site.map(|site| Lanes { first: site, bytes: self.lane_bytes });
        self.recording.touch(ptr, ptr.saturating_add(bytes), touch, lanes);
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
        if ptr < self.block.start || end > self.block.end {
            let Some(block) = self.block_around(ptr, len) else { return false };
            self.block = block;
        }
        if writes { self.block.writes } else { self.block.reads }
    }

    /// Returns the bytes from `ptr` to the end of its block, at most `len`.
    fn reachable(&self, ptr: u64, len: u64) -> u64 {
        self.block_around(ptr, 1).map_or(0, |block| len.min(block.end - ptr))
    }

    /// Returns the block that contains `len` bytes at `ptr`: a live allocation, or memory that was
    /// freed after the launch was submitted. Its address can belong to a smaller allocation now.
    fn block_around(&self, ptr: u64, len: u64) -> Option<Block> {
        let live = self.present.allocation_around(ptr);
        let live = live.map(|(start, found)| (start, start + found.bytes, found.home));
        let holds = |(_, end, _): &(u64, u64, Home)| len <= end - ptr;
        let freed = || self.log.freed_around(ptr, len);
        let (start, end, home) = live.filter(holds).or_else(freed)?;
        let can = |home: Home, writes| self.present.can_reach(home, self.by, writes);
        Some(Block { start, end, reads: can(home, false), writes: can(home, true) })
    }
}
