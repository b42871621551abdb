//! A resource without memory: counts live and retired bytes at every call, retires blocks for a
//! while, and fails as often as configured.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockSlot, BlockState, DeallocateError, DeviceBlock,
    DeviceMemoryResource, Generation, ResourceError, ResourceResult, StreamId, StreamPoolId, Usage,
};

/// The resource.
#[derive(Debug)]
pub(crate) struct Backend {
    pool: StreamPoolId,
    /// The bytes that may be out at any instant; whether they were exceeded is in `exceeded`.
    bound: AtomicU64,
    exceeded: AtomicBool,
    out: AtomicU64,
    allocated: AtomicU64,
    freed: AtomicU64,
    address: AtomicU64,
    calls: AtomicU64,
    fails_every: AtomicU64,
    deallocated: AtomicU64,
    /// One block in this number is retired, until it is reaped.
    retires_every: AtomicU64,
    /// The maximum number of retired blocks: beyond it, the oldest is freed.
    keeps: usize,
    retired: Mutex<Vec<(Generation, u64)>>,
    /// When each block that was retired was freed.
    freed_at: Mutex<HashMap<Generation, u64>>,
    clock: AtomicU64,
    /// The number of reaps: without and with waiting.
    pub(crate) reaps: [AtomicU64; 2],
    /// `true` if `try_reap` frees anything.
    reaps_early: AtomicBool,
}

impl Backend {
    pub(crate) fn new() -> Self {
        Self {
            pool: StreamPoolId::next().unwrap(),
            bound: AtomicU64::new(u64::MAX),
            exceeded: AtomicBool::new(false),
            out: AtomicU64::new(0),
            allocated: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            address: AtomicU64::new(1 << 20),
            calls: AtomicU64::new(0),
            fails_every: AtomicU64::new(u64::MAX),
            deallocated: AtomicU64::new(0),
            retires_every: AtomicU64::new(u64::MAX),
            keeps: 8,
            retired: Mutex::default(),
            freed_at: Mutex::default(),
            clock: AtomicU64::new(0),
            reaps: Default::default(),
            reaps_early: AtomicBool::new(true),
        }
    }

    /// Remembers if ever more than `bytes` bytes are out.
    pub(crate) fn bounded(self, bytes: u64) -> Self {
        self.bound.store(bytes, SeqCst);
        self
    }

    /// Every `n`th call of `allocate` and `deallocate` fails.
    pub(crate) fn failing(self, n: u64) -> Self {
        self.fails_every.store(n, SeqCst);
        self
    }

    /// Every `n`th block is retired when it is deallocated.
    pub(crate) fn retiring(self, n: u64) -> Self {
        self.retires_every.store(n, SeqCst);
        self
    }

    /// Retires every block, and frees none before `reap_pending`, or `try_reap` if it is `early`.
    pub(crate) fn keeping(mut self, early: bool) -> Self {
        self.keeps = usize::MAX;
        self.reaps_early.store(early, SeqCst);
        self.retiring(1)
    }

    /// From now on no block is retired.
    pub(crate) fn stop_retiring(&self) {
        self.retires_every.store(u64::MAX, SeqCst);
    }

    pub(crate) fn reap_early(&self, early: bool) {
        self.reaps_early.store(early, SeqCst);
    }

    pub(crate) fn was_exceeded(&self) -> bool {
        self.exceeded.load(SeqCst)
    }

    pub(crate) fn stream(&self) -> StreamId {
        StreamId::from_parts(self.pool, 0, 1).unwrap()
    }

    /// The time: counts what happens.
    pub(crate) fn tick(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    /// When the block was freed, if it was retired before.
    pub(crate) fn freed_at(&self) -> HashMap<Generation, u64> {
        self.freed_at.lock().unwrap().clone()
    }

    pub(crate) fn reaped(&self) -> [u64; 2] {
        [self.reaps[0].load(SeqCst), self.reaps[1].load(SeqCst)]
    }

    fn fails(&self) -> ResourceResult<()> {
        let call = self.calls.fetch_add(1, SeqCst) + 1;
        if call.is_multiple_of(self.fails_every.load(SeqCst)) {
            return Err(ResourceError::driver("cuMemAllocAsync", 999, "CUDA_ERROR_UNKNOWN", 0));
        }
        Ok(())
    }

    /// Frees all but the youngest `kept` retired blocks.
    fn free_retired(&self, kept: usize) -> u64 {
        let mut retired = self.retired.lock().unwrap();
        let count = retired.len().saturating_sub(kept);
        let mut freed = 0;
        for (generation, bytes) in retired.drain(..count) {
            self.out.fetch_sub(bytes, SeqCst);
            self.freed.fetch_add(bytes, SeqCst);
            self.freed_at.lock().unwrap().insert(generation, self.tick());
            freed += bytes;
        }
        freed
    }
}

impl DeviceMemoryResource for Backend {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        if bytes == 0 {
            return Err(ResourceError::zero_size());
        }
        if bytes > usize::MAX - 255 {
            return Err(ResourceError::size_overflow(bytes));
        }
        self.fails()?;
        let size = bytes as u64;
        let before = self.out.fetch_add(size, SeqCst);
        if before + size > self.bound.load(SeqCst) {
            self.exceeded.store(true, SeqCst);
        }
        self.allocated.fetch_add(size, SeqCst);
        let parts = BlockParts {
            ptr: self.address.fetch_add(256, SeqCst),
            bytes,
            reserved_bytes: bytes,
            alignment: 256,
            device_ordinal: 0,
            alloc_stream: stream,
            tag,
            generation: Generation::next(),
            slot: BlockSlot::NONE,
            state: BlockState::Live,
            part_depth: 0,
        };
        // SAFETY: there is no memory; the address is never used.
        #[allow(unsafe_code, reason = "making blocks is what a resource does")]
        Ok(unsafe { DeviceBlock::from_parts(parts) })
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        if let Err(error) = self.fails() {
            return Err(DeallocateError::new(error, block));
        }
        let bytes = block.bytes() as u64;
        let number = self.deallocated.fetch_add(1, SeqCst) + 1;
        if number.is_multiple_of(self.retires_every.load(SeqCst)) {
            self.retired.lock().unwrap().push((block.generation(), bytes));
            self.free_retired(self.keeps);
            return Ok(BlockState::Retired);
        }
        self.out.fetch_sub(bytes, SeqCst);
        self.freed.fetch_add(bytes, SeqCst);
        Ok(BlockState::Freed)
    }

    fn is_retired(&self, block: BlockId) -> bool {
        let generation = block.generation();
        self.retired.lock().unwrap().iter().any(|(retired, _)| *retired == generation)
    }

    fn device_ordinal(&self) -> usize {
        0
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.pool
    }

    fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        let retired = self.retired.lock().unwrap();
        usage.retired = retired.iter().map(|(_, bytes)| bytes).sum();
        usage.live = self.out.load(SeqCst) - usage.retired;
        usage.reserved = self.out.load(SeqCst);
        usage.total_allocated = self.allocated.load(SeqCst);
        usage.total_freed = self.freed.load(SeqCst);
        usage
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.reaps[0].fetch_add(1, SeqCst);
        Ok(if self.reaps_early.load(SeqCst) { self.free_retired(0) } else { 0 })
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.reaps[1].fetch_add(1, SeqCst);
        Ok(self.free_retired(0))
    }
}
