//! Helpers that the tests of this backend share.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;

use dmr_core::{
    AllocTag, BlockParts, BlockSlot, BlockState, DeviceBlock, Generation, PhysicalMemory, StreamId,
    VirtualMemory,
};
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_testkit::Rig;

pub(crate) const TAG: AllocTag = AllocTag::new("virtual");

pub(crate) fn resource(rig: &Rig) -> VirtualCudaResource {
    VirtualCudaResource::new(Arc::clone(rig.streams()), VirtualConfig::new()).unwrap()
}

/// Returns the memory mapped at `address` as a block for the rig's fills and checks, which is never
/// deallocated.
pub(crate) fn view(
    rig: &Rig,
    address: u64,
    memory: &PhysicalMemory,
    home: StreamId,
) -> DeviceBlock {
    let bytes = memory.bytes() as usize;
    let parts = BlockParts {
        ptr: address,
        bytes,
        reserved_bytes: bytes,
        alignment: 1 << 21,
        device_ordinal: rig.ordinal(),
        alloc_stream: home,
        tag: TAG,
        generation: Generation::next(),
        slot: BlockSlot::NONE,
        state: BlockState::Live,
        part_depth: 0,
    };
    // SAFETY: mapped there while the test uses it.
    #[allow(unsafe_code, reason = "work is submitted on blocks")]
    unsafe {
        DeviceBlock::from_parts(parts)
    }
}

/// Unmaps memory everywhere, and frees it and its addresses.
pub(crate) fn take_back(
    pages: &dyn VirtualMemory,
    memory: PhysicalMemory,
    mapped_at: &[u64],
    range: dmr_core::AddressRange,
) {
    for address in mapped_at {
        pages.unmap(&memory, *address).unwrap();
    }
    pages.destroy(memory).unwrap();
    pages.release(range).unwrap();
}
