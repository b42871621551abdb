//! The blocks of an adaptor that returns parts of its upstream's blocks, and the accounting in
//! requested bytes.

#![cfg_attr(
    not(all(feature = "aligned", feature = "debug-guard")),
    allow(dead_code, reason = "each adaptor uses its part")
)]

use std::collections::{HashMap, VecDeque};

use dmr_core::{
    BlockId, BlockState, DeallocateError, DeviceBlock, Generation, ResourceError, ResourceResult,
    Usage, WholeBlock,
};

/// The live and the retired blocks. Upstream counts padding as well, so their bytes are counted
/// here.
#[derive(Debug, Default)]
pub(crate) struct NarrowedBlocks {
    /// The upstream's block of each live block.
    live: HashMap<Generation, WholeBlock>,
    /// Deallocated upstream, and retired there.
    retired: VecDeque<Retired>,
    /// In requested bytes; `reserved` is not kept.
    usage: Usage,
}

#[derive(Debug)]
struct Retired {
    block: BlockId,
    bytes: u64,
}

impl NarrowedBlocks {
    /// Adds a block of `bytes` bytes, the part of `whole`, that is about to be returned to a
    /// caller.
    pub(crate) fn insert(&mut self, whole: WholeBlock, bytes: usize) {
        self.usage.live += bytes as u64;
        self.usage.total_allocated += bytes as u64;
        self.live.insert(whole.id().generation(), whole);
    }

    /// Removes a live block, counts it as retired, and returns the upstream's block.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub(crate) fn remove(
        &mut self,
        block: DeviceBlock,
        missing: impl FnOnce(&DeviceBlock) -> ResourceError,
    ) -> Result<DeviceBlock, Box<DeallocateError>> {
        let generation = block.generation();
        let bytes = block.bytes() as u64;
        let Some(whole) = self.live.remove(&generation) else {
            return Err(DeallocateError::new(missing(&block), block));
        };
        match whole.restore(block) {
            Ok(whole) => {
                self.usage.live -= bytes;
                self.usage.retired += bytes;
                Ok(whole)
            }
            // A part of the block that the caller was given.
            Err((whole, block)) => {
                self.live.insert(generation, whole);
                Err(DeallocateError::new(ResourceError::part_of_block(&block), block))
            }
        }
    }

    /// Makes a removed block live again: the part of `bytes` bytes at `offset`, which is returned.
    pub(crate) fn reinsert(
        &mut self,
        whole: DeviceBlock,
        offset: usize,
        bytes: usize,
    ) -> DeviceBlock {
        self.usage.live += bytes as u64;
        self.usage.retired -= bytes as u64;
        match whole.narrow(offset, bytes) {
            Ok((part, whole)) => {
                self.live.insert(part.generation(), whole);
                part
            }
            // Unreachable: it was narrowed to this part before.
            Err(whole) => whole,
        }
    }

    /// Counts a removed block of `bytes` bytes as live that upstream has kept without deallocating
    /// it.
    pub(crate) fn lose(&mut self, bytes: usize) {
        self.usage.live += bytes as u64;
        self.usage.retired -= bytes as u64;
    }

    /// Returns an error unless [`remove`](Self::remove) would accept the block: `missing` if it is
    /// not live, and [`PartOfBlock`](ResourceError::PartOfBlock) for a part of a live one.
    pub(crate) fn check(
        &self,
        block: &DeviceBlock,
        missing: impl FnOnce(&DeviceBlock) -> ResourceError,
    ) -> ResourceResult<()> {
        match self.live.get(&block.generation()) {
            None => Err(missing(block)),
            Some(whole) if whole.has_part(block) => Ok(()),
            Some(_) => Err(ResourceError::part_of_block(block)),
        }
    }

    /// Counts a removed block of `bytes` bytes that upstream has deallocated. Returns the bytes of
    /// this block and of older ones that are freed by now.
    pub(crate) fn deallocated(
        &mut self,
        block: BlockId,
        bytes: usize,
        state: BlockState,
        is_retired: impl Fn(BlockId) -> bool,
    ) -> u64 {
        let bytes = bytes as u64;
        if state == BlockState::Freed {
            return self.free(bytes);
        }
        self.retired.push_back(Retired { block, bytes });
        // Two polls for one push: the queue shrinks as long as half of its blocks were freed.
        self.poll_retired(2, is_retired)
    }

    /// Looks at the oldest `most` retired blocks, and counts those as freed that upstream has
    /// freed. Returns their bytes.
    pub(crate) fn poll_retired(
        &mut self,
        most: usize,
        is_retired: impl Fn(BlockId) -> bool,
    ) -> u64 {
        let mut freed = 0;
        for _ in 0..most.min(self.retired.len()) {
            let Some(Retired { block, bytes }) = self.retired.pop_front() else { break };
            if is_retired(block) {
                self.retired.push_back(Retired { block, bytes });
            } else {
                freed += self.free(bytes);
            }
        }
        freed
    }

    fn free(&mut self, bytes: u64) -> u64 {
        self.usage.retired -= bytes;
        self.usage.total_freed += bytes;
        bytes
    }

    /// Returns the accounting, with the bytes that upstream has reserved.
    pub(crate) const fn usage(&self, reserved: u64) -> Usage {
        let mut usage = self.usage;
        usage.reserved = reserved;
        usage
    }

    pub(crate) fn is_live(&self, generation: Generation) -> bool {
        self.live.contains_key(&generation)
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = &WholeBlock> {
        self.live.values()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }
}
