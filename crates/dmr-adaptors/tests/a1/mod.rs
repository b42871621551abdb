//! What the tests of the log share: a resource that hands out addresses again at once, and sinks.

#![allow(dead_code, unreachable_pub, reason = "each test executable uses a part of it")]
#![allow(unsafe_code, reason = "a resource makes blocks")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use dmr_adaptors::logging::{LogRecord, LoggingSink, SinkError};
use dmr_core::record::RecordAction;
use dmr_core::{
    AllocTag, AllocationRecord, BlockId, BlockParts, BlockSlot, BlockState, DeallocateError,
    DeviceBlock, DeviceMemoryResource, Generation, ResourceError, ResourceResult, StreamId,
    StreamPoolId, Usage,
};
use dmr_trace::TraceReader;

/// Hands the address that was freed last to whoever comes next, on any thread: a log that is a
/// little out of order has an address that is live twice. There is no memory behind it.
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
        // SAFETY: nobody uses the memory, there is none.
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

/// Does with each record what a function says.
pub struct SinkFn<F>(pub F);

impl<F> std::fmt::Debug for SinkFn<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SinkFn")
    }
}

impl<F: Fn(&LogRecord) -> Result<(), SinkError> + Send + Sync> LoggingSink for SinkFn<F> {
    fn record(&self, record: &LogRecord) -> Result<(), SinkError> {
        (self.0)(record)
    }

    fn flush(&self) -> Result<(), SinkError> {
        Ok(())
    }
}

/// The rows of a log file, all of which have to be readable.
pub fn rows(path: &Path) -> Vec<AllocationRecord> {
    let mut reader = TraceReader::open(path).unwrap();
    let rows = reader.by_ref().map(|row| row.unwrap().record).collect();
    assert_eq!(reader.bad_rows().first, []);
    rows
}

/// Checks that the rows are numbered, in time order, and that no address is live twice. Answers
/// how many addresses are live at the end.
pub fn check_order(rows: &[AllocationRecord]) -> usize {
    let mut live = HashMap::new();
    let mut last = 0;
    for (row, order) in rows.iter().zip(0..) {
        assert_eq!(row.order, order, "{row:?}");
        assert!(row.time_ns >= last, "the time goes back: {row:?}");
        last = row.time_ns;
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
