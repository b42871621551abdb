//! Blocks of pinned memory, and work of the host and of the device on them.

#![allow(unsafe_code, reason = "the host reads and writes pinned memory")]

use std::sync::Arc;

use dmr_core::{Access, AllocTag, BlockUse, DeviceBlock, DeviceOps};
use dmr_pinned::{PinnedKind, PinnedResource};
use dmr_sim::{Policy, Universe};
use dmr_streams::StreamLease;
use dmr_testkit::Rig;

pub(crate) const TAG: AllocTag = AllocTag::new("d7");
/// A block of this size has a segment of its own.
pub(crate) const LARGE: usize = 3 << 20;

pub(crate) fn lazy() -> Rig {
    Rig::in_universe(&Universe::builder().policy(Policy::Lazy).build().expect("the simulator"))
}

pub(crate) fn pinned(rig: &Rig) -> PinnedResource {
    PinnedResource::new(Arc::clone(rig.streams()), PinnedKind::Cached)
}

pub(crate) fn host_allocations(rig: &Rig) -> u64 {
    rig.universe().calls().count("cuMemHostAlloc")
}

/// Writes a block of host memory as a whole.
pub(crate) fn host_writes(block: &DeviceBlock, byte: u8) {
    // SAFETY: a live block of pinned memory that no device work uses.
    unsafe { (block.ptr() as *mut u8).write_bytes(byte, block.bytes()) };
}

/// Submits a recorded write of a block.
pub(crate) fn device_writes(rig: &Rig, block: &DeviceBlock, byte: u8, stream: &StreamLease) {
    let uses = rig.streams().uses();
    let window = [BlockUse::new(block.id(), Access::Write)];
    let tokens = uses.prepare(&window, stream.id()).unwrap();
    let pattern = u32::from_le_bytes([byte; 4]);
    rig.ops().fill_pattern(block, 0..block.bytes(), pattern, stream.id()).unwrap();
    uses.finish(tokens).unwrap();
}

/// Asserts that the device writes a block no more that the host has written.
pub(crate) fn assert_the_host_wrote_last(rig: &Rig, block: &DeviceBlock, byte: u8) {
    host_writes(block, byte);
    rig.device().synchronize().unwrap();
    // SAFETY: a live block, and all work is done.
    let bytes = unsafe { std::slice::from_raw_parts(block.ptr() as *const u8, block.bytes()) };
    assert!(bytes.iter().all(|found| *found == byte));
}
