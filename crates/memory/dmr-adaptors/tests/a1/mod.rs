//! Shared by the tests of the log: a resource that reuses addresses at once, and sinks.

#![allow(dead_code, unreachable_pub, reason = "each test executable uses a part of it")]
#![allow(unsafe_code, reason = "a resource makes blocks")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use dmr_adaptors::logging::{LoggingSink, SinkError};
use dmr_core::record::RecordAction;
use dmr_core::{
    AllocTag, AllocationRecord, BlockId, BlockParts, BlockSlot, BlockState, DeallocateError,
    DeviceBlock, DeviceMemoryResource, Generation, ResourceError, ResourceResult, StreamId,
    StreamPoolId, Usage,
};
use dmr_trace::TraceReader;

/// Reuses the address that was freed last for the next allocation of any thread, so that a log that
/// is a little out of order has an address that is live twice. Its blocks have no memory.
#[derive(Debug)]
pub struct Recycler {
    pool: StreamPoolId,
    free: Mutex<Vec<u64>>,
    next: AtomicU64,
}

impl Recycler {
    pub fn new() -> Self {
        let pool = StreamPoolId::next().unwrap();
        Self { pool, free: Mutex::default(), next: AtomicU64::new(0x1000) }
    }

    pub fn stream(&self, slot: usize) -> StreamId {
        StreamId::from_parts(self.pool, slot, 1).unwrap()
    }
}

impl DeviceMemoryResource for Recycler {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        if bytes == 0 {
            return Err(ResourceError::zero_size());
        }
        let reused = self.free.lock().unwrap().pop();
        let ptr = reused.unwrap_or_else(|| self.next.fetch_add(0x1000, Ordering::Relaxed));
        let parts = BlockParts {
            ptr,
            bytes,
            reserved_bytes: 0x1000,
            alignment: 0x1000,
            device_ordinal: 3,
            alloc_stream: stream,
            tag,
            generation: Generation::next(),
            slot: BlockSlot::NONE,
            state: BlockState::Live,
            part_depth: 0,
        };
        // SAFETY: no test uses the memory, there is none.
        Ok(unsafe { DeviceBlock::from_parts(parts) })
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        if block.alloc_stream().pool() != Some(self.pool) {
            let error = ResourceError::foreign_block(&block, 3);
            return Err(DeallocateError::new(error, block));
        }
        self.free.lock().unwrap().push(block.into_parts().ptr);
        Ok(BlockState::Freed)
    }

    fn is_retired(&self, _: BlockId) -> bool {
        false
    }

    fn device_ordinal(&self) -> usize {
        3
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.pool
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        Ok(17)
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        Err(ResourceError::driver("cuMemFree", 1, "CUDA_ERROR_INVALID_VALUE", 3))
    }
}

/// Allocates and frees, `times` times.
pub fn churn(resource: &dyn DeviceMemoryResource, stream: StreamId, times: usize) {
    for _ in 0..times {
        let block = resource.allocate(100, stream, AllocTag::new("churn")).unwrap();
        resource.deallocate(block).unwrap();
    }
}

/// A sink that calls a function for each record.
pub struct SinkFn<F>(pub F);

impl<F> std::fmt::Debug for SinkFn<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SinkFn")
    }
}

impl<F: Fn(&AllocationRecord) -> Result<(), SinkError> + Send + Sync> LoggingSink for SinkFn<F> {
    fn record(&self, record: &AllocationRecord) -> Result<(), SinkError> {
        (self.0)(record)
    }

    fn flush(&self) -> Result<(), SinkError> {
        Ok(())
    }
}

/// Returns the rows of a log file, sorted by their order. All of them have to be readable.
pub fn rows(path: &Path) -> Vec<AllocationRecord> {
    let mut reader = TraceReader::open(path).unwrap();
    let rows = reader.by_ref().map(|row| row.unwrap().record).collect();
    assert_eq!(reader.bad_rows().first, []);
    rows
}

/// Checks that the rows are sorted by order and in time order, that no two rows of a thread have
/// the same order, and that no address is live twice. Returns how many addresses are live at the
/// end.
pub fn check_order(rows: &[AllocationRecord]) -> usize {
    let mut live = HashMap::new();
    let mut last_of_thread = HashMap::new();
    let mut last = (0, 0);
    for row in rows {
        let this = (row.order, row.time_ns);
        assert!(this.0 >= last.0 && this.1 >= last.1, "{last:?} is before {row:?}");
        last = this;
        let before = last_of_thread.insert(row.thread, row.order);
        assert_ne!(before, Some(row.order), "{row:?}");
        match row.action {
            RecordAction::Allocate => {
                let other = live.insert(row.ptr, row.generation);
                assert_eq!(other, None, "live twice: {row:?}");
            }
            RecordAction::Deallocate => {
                assert_eq!(live.remove(&row.ptr), Some(row.generation), "{row:?}");
            }
            _ => {}
        }
    }
    live.len()
}
