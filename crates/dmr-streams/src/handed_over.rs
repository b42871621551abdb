//! Blocks on their way from their owner through `Tracked` to the resource that they came from.

use std::collections::VecDeque;

use dmr_core::{BlockId, BlockParts, BlockSlot, DeviceBlock, Generation};

use crate::uses::Dependencies;

#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) blocks: VecDeque<Retired>,
    /// Bytes asked for in the blocks that the inner resource counts as live and this one as
    /// retired.
    pub(crate) bytes: u64,
}

pub(crate) struct Retired {
    /// As its owner had it.
    pub(crate) block: DeviceBlock,
    pub(crate) inner_slot: BlockSlot,
    /// What it waits for, once no window is open.
    pub(crate) after: Option<Dependencies>,
}

/// Blocks that the inner resource was given and keeps for now, as it knows them.
#[derive(Debug, Default)]
pub(crate) struct HandedOver(VecDeque<BlockId>);

impl HandedOver {
    /// Adds one, and forgets up to two that are not kept any more: so there are never many more
    /// than are kept.
    pub(crate) fn push(&mut self, id: BlockId, is_kept: impl Fn(BlockId) -> bool) {
        for _ in 0..2 {
            if self.0.front().is_some_and(|&oldest| !is_kept(oldest)) {
                self.0.pop_front();
            }
        }
        self.0.push_back(id);
    }

    pub(crate) fn is_kept(
        &mut self,
        generation: Generation,
        is_kept: impl Fn(BlockId) -> bool,
    ) -> bool {
        let Some(at) = self.0.iter().position(|id| id.generation() == generation) else {
            return false;
        };
        let kept = is_kept(self.0[at]);
        if !kept {
            self.0.remove(at);
        }
        kept
    }
}

/// What `Tracked` keeps of a block in its slot of the use table: how the inner resource knows the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inner {
    pub(crate) slot: BlockSlot,
    /// The part depth with which the inner resource allocated the block.
    pub(crate) part_depth: u8,
}

impl Inner {
    pub(crate) fn of(block: &DeviceBlock) -> Self {
        Self { slot: block.id().slot(), part_depth: block.part_depth() }
    }

    pub(crate) fn to_payload(self) -> u64 {
        u64::from(self.slot.index().unwrap_or(u32::MAX)) | u64::from(self.part_depth) << u32::BITS
    }

    pub(crate) fn from_payload(payload: u64) -> Self {
        // The index of no slot is that of `BlockSlot::NONE`.
        let (slot, part_depth) = (BlockSlot::new(payload as u32), (payload >> u32::BITS) as u8);
        Self { slot, part_depth }
    }
}

/// The same block, found elsewhere.
pub(crate) fn with_slot(parts: BlockParts, slot: BlockSlot) -> DeviceBlock {
    // SAFETY: a block of the inner resource taken apart by the caller, and made again with all that
    // it says of the memory.
    unsafe { DeviceBlock::from_parts(BlockParts { slot, ..parts }) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_in_a_slot_comes_back() {
        for slot in [BlockSlot::new(0), BlockSlot::new(u32::MAX - 1), BlockSlot::NONE] {
            for part_depth in [0, 1, u8::MAX] {
                let inner = Inner { slot, part_depth };
                assert_eq!(Inner::from_payload(inner.to_payload()), inner);
            }
        }
    }
}
