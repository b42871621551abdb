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

/// The same block, found elsewhere.
pub(crate) fn with_slot(parts: BlockParts, slot: BlockSlot) -> DeviceBlock {
    // SAFETY: a block of the inner resource taken apart by the caller, and made again with all that
    // it says of the memory.
    unsafe { DeviceBlock::from_parts(BlockParts { slot, ..parts }) }
}
