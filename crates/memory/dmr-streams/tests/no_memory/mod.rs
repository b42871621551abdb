//! Blocks in use slots that no memory stands behind.

#![allow(unsafe_code, reason = "a resource makes blocks")]

use dmr_core::{AllocTag, BlockId, BlockParts, BlockState, DeviceBlock, Generation, StreamId};
use dmr_streams::StreamPool;
use dmr_streams::uses::FreeSlot;

/// Puts a block without memory into the slot.
pub(crate) fn occupy(streams: &StreamPool, slot: FreeSlot, home: StreamId) -> BlockId {
    let home = streams.enter(home).unwrap();
    let generation = Generation::next();
    let slot = home.occupy(slot, generation).unwrap();
    let parts = BlockParts {
        ptr: 256,
        bytes: 1,
        reserved_bytes: 1,
        alignment: 256,
        device_ordinal: 0,
        alloc_stream: home.id(),
        tag: AllocTag::UNTAGGED,
        generation,
        slot,
        state: BlockState::Live,
        part_depth: 0,
    };
    // SAFETY: nothing is ever done with the address.
    unsafe { DeviceBlock::from_parts(parts) }.id()
}
