//! A resource of the dependent's own: it gives out addresses without memory.
#![allow(unsafe_code, reason = "makes blocks")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockSlot, BlockState, DeallocateError, DeviceBlock,
    DeviceMemoryResource, Generation, ResourceError, ResourceResult, StreamId, StreamPoolId, Usage,
};

/// Addresses that no work uses: the programs submit none.
#[derive(Debug)]
pub struct Addresses {
    streams: StreamPoolId,
    next: AtomicU64,
    usage: Mutex<Usage>,
}

impl Addresses {
    pub fn new(streams: StreamPoolId) -> Self {
        Self { streams, next: AtomicU64::new(1 << 40), usage: Mutex::default() }
    }
}

impl DeviceMemoryResource for Addresses {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        if bytes == 0 {
            return Err(ResourceError::zero_size());
        }
        let reserved_bytes = bytes.next_multiple_of(256);
        let home = StreamId::from_parts(self.streams, 0, 1);
        let mut usage = self.usage.lock().unwrap();
        usage.live += bytes as u64;
        usage.reserved += reserved_bytes as u64;
        usage.total_allocated += bytes as u64;
        let parts = BlockParts {
            ptr: self.next.fetch_add(reserved_bytes as u64, Ordering::Relaxed),
            bytes,
            reserved_bytes,
            alignment: 256,
            device_ordinal: 0,
            alloc_stream: if stream.is_default() { home.unwrap() } else { stream },
            tag,
            generation: Generation::next(),
            slot: BlockSlot::NONE,
            state: BlockState::Live,
            part_depth: 0,
        };
        // SAFETY: no work is submitted, so no access is ever made to the addresses; each is used
        // once.
        Ok(unsafe { DeviceBlock::from_parts(parts) })
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        if let Err(error) = block.require_part_depth(0) {
            return Err(DeallocateError::new(error, block));
        }
        let mut usage = self.usage.lock().unwrap();
        let parts = block.into_parts();
        usage.live -= parts.bytes as u64;
        usage.reserved -= parts.reserved_bytes as u64;
        usage.total_freed += parts.bytes as u64;
        Ok(BlockState::Freed)
    }

    fn is_retired(&self, _block: BlockId) -> bool {
        false
    }

    fn device_ordinal(&self) -> usize {
        0
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.streams
    }

    fn usage(&self) -> Usage {
        *self.usage.lock().unwrap()
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        Ok(0)
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        Ok(0)
    }
}
