//! The ids that the upstream of `Tracked` has for its blocks, live and retired.

use std::collections::VecDeque;

use dmr_core::{BlockId, BlockParts, BlockSlot, DeviceBlock, Generation};

/// Blocks that were deallocated upstream and are retired there, by their upstream ids.
#[derive(Debug, Default)]
pub(crate) struct RetiredUpstream(VecDeque<BlockId>);

impl RetiredUpstream {
    /// Adds a block, and removes up to two that are not retired any more, so that the list is
    /// hardly longer than the number of retired blocks.
    pub(crate) fn push(&mut self, id: BlockId, is_retired: impl Fn(BlockId) -> bool) {
        for _ in 0..2 {
            if self.0.front().is_some_and(|&oldest| !is_retired(oldest)) {
                self.0.pop_front();
            }
        }
        self.0.push_back(id);
    }

    /// Returns whether the block is still retired upstream.
    pub(crate) fn contains(
        &mut self,
        generation: Generation,
        is_retired: impl Fn(BlockId) -> bool,
    ) -> bool {
        let Some(at) = self.0.iter().position(|id| id.generation() == generation) else {
            return false;
        };
        let retired = is_retired(self.0[at]);
        if !retired {
            self.0.remove(at);
        }
        retired
    }
}

/// The upstream id of a block, which is the payload of its use slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UpstreamId {
    pub(crate) slot: BlockSlot,
    /// The part depth with which upstream allocated the block.
    pub(crate) part_depth: u8,
}

impl UpstreamId {
    pub(crate) fn of(block: &DeviceBlock) -> Self {
        Self { slot: block.id().slot(), part_depth: block.part_depth() }
    }

    pub(crate) fn to_payload(self) -> u64 {
        u64::from(self.slot.to_bits()) | u64::from(self.part_depth) << u32::BITS
    }

    pub(crate) fn from_payload(payload: u64) -> Self {
        let slot = BlockSlot::from_bits(payload as u32);
        let part_depth = (payload >> u32::BITS) as u8;
        Self { slot, part_depth }
    }
}

/// Makes a block of the parts of a block of upstream, with another slot.
pub(crate) fn with_slot(parts: BlockParts, slot: BlockSlot) -> DeviceBlock {
    // SAFETY: the caller has taken a block of upstream into these parts, which describe its memory.
    unsafe { DeviceBlock::from_parts(BlockParts { slot, ..parts }) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_id_is_the_same_after_a_round_trip_through_a_payload() {
        for slot in [BlockSlot::new(0), BlockSlot::new(5).of_host_memory(), BlockSlot::NONE] {
            for part_depth in [0, 1, u8::MAX] {
                let upstream = UpstreamId { slot, part_depth };
                assert_eq!(UpstreamId::from_payload(upstream.to_payload()), upstream);
            }
        }
    }
}
