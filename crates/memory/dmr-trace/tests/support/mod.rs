//! A resource without memory: it allocates addresses, and faults can be planted in it.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(unsafe_code, reason = "only a resource makes blocks")]

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use dmr_core::size::checked_round_up;
use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockSlot, BlockState, DeallocateError, DeviceBlock,
    DeviceMemoryResource, DeviceOps, Generation, PatternMismatch, ResourceError, ResourceResult,
    StreamId, StreamPoolId, Usage,
};
use dmr_trace::{Replay, ReplayError, ReplayOptions, Summary, TraceReader};

/// Allocates addresses. A deallocated block is retired until it is reaped.
#[derive(Debug)]
pub struct Fake {
    pool: StreamPoolId,
    state: Mutex<State>,
    faults: Faults,
}

/// The calls that go wrong. Calls count from 1.
#[derive(Debug, Default)]
pub struct Faults {
    /// This allocation returns the address of the one before.
    pub twice: Option<u64>,
    /// These allocations fail.
    pub failing_allocs: Range<u64>,
    /// These frees fail, and leave the block with the caller.
    pub failing_frees: Range<u64>,
    /// These growths fail.
    pub failing_grows: Range<u64>,
    /// The fill of this allocation goes one byte too far.
    pub overrun: Option<u64>,
    /// Verdicts cannot be fetched.
    pub no_verdicts: bool,
    /// These allocations forget that they were counted.
    pub miscounted: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    last: u64,
    allocs: u64,
    frees: u64,
    grows: u64,
    fills: u64,
    live: HashMap<Generation, (u64, usize)>,
    retired: Vec<(u64, usize)>,
    kept: Vec<Generation>,
    free: HashMap<u64, Vec<u64>>,
    usage: Usage,
    memory: HashMap<u64, u8>,
    mismatches: Vec<PatternMismatch>,
    keeps_no_calls: bool,
    /// The allocations, in order: bytes, stream, tag.
    calls: Vec<(usize, StreamId, AllocTag)>,
}

impl Fake {
    pub fn new() -> Self {
        Self::with(Faults::default())
    }

    pub fn with(faults: Faults) -> Self {
        let state = State { next: 0x10_0000, ..State::default() };
        Self { pool: StreamPoolId::next().unwrap(), state: Mutex::new(state), faults }
    }

    /// One that remembers nothing of the calls, and reaps at once.
    pub fn forgetful() -> Self {
        Self::new().forgetting()
    }

    /// Keeps no list of the calls.
    pub fn forgetting(self) -> Self {
        self.lock().keeps_no_calls = true;
        self
    }

    pub fn streams(&self, n: usize) -> Vec<StreamId> {
        (0..n).map(|slot| StreamId::from_parts(self.pool, slot, 0).unwrap()).collect()
    }

    /// Returns the allocations, in order: bytes, stream, tag.
    pub fn calls(&self) -> Vec<(usize, StreamId, AllocTag)> {
        self.lock().calls.clone()
    }

    /// Replays with two streams.
    pub fn replay(&self, trace: &str, options: ReplayOptions) -> Result<Summary, ReplayError> {
        Replay::new(self).options(options).run(reader(trace), &mut self.streams(2), &mut ())
    }

    /// Replays with two streams, filling and checking each block.
    pub fn replay_verified(&self, trace: &str) -> Result<Summary, ReplayError> {
        Replay::new(self).verify(self).run(reader(trace), &mut self.streams(2), &mut ())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// A reader of a text.
pub fn reader(trace: &str) -> TraceReader {
    TraceReader::new("test.csv", std::io::Cursor::new(trace.to_owned())).unwrap()
}

impl DeviceMemoryResource for Fake {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let reserved = checked_round_up(bytes, 256)?;
        let mut state = self.lock();
        state.allocs += 1;
        if bytes > 1 << 50 {
            return Err(ResourceError::beyond_device(bytes, 1 << 50));
        }
        if self.faults.failing_allocs.contains(&state.allocs) {
            return Err(ResourceError::out_of_memory(bytes, 0, (0, 0), &state.usage));
        }
        let reused = state.free.get_mut(&(reserved as u64)).and_then(Vec::pop);
        let ptr = if self.faults.twice == Some(state.allocs) {
            state.last
        } else if let Some(ptr) = reused {
            ptr
        } else {
            let ptr = state.next;
            state.next += reserved as u64;
            state.usage.reserved += reserved as u64;
            ptr
        };
        state.last = ptr;
        let generation = Generation::next();
        state.live.insert(generation, (ptr, bytes));
        if self.faults.miscounted != Some(state.allocs) {
            state.usage.live += bytes as u64;
        }
        state.usage.total_allocated += bytes as u64;
        if !state.keeps_no_calls {
            state.calls.push((bytes, stream, tag));
        }
        // SAFETY: there is no memory behind a fake: nothing dereferences the address.
        Ok(unsafe {
            DeviceBlock::from_parts(BlockParts {
                ptr,
                bytes,
                reserved_bytes: reserved,
                alignment: 256,
                device_ordinal: 0,
                alloc_stream: stream,
                tag,
                generation,
                slot: BlockSlot::NONE,
                state: BlockState::Live,
                part_depth: 0,
            })
        })
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let mut state = self.lock();
        state.frees += 1;
        if self.faults.failing_frees.contains(&state.frees) {
            let error = ResourceError::driver("cuMemFree_v2", 999, "CUDA_ERROR_UNKNOWN", 0);
            return Err(DeallocateError::new(error, block));
        }
        let (ptr, bytes) =
            state.live.remove(&block.generation()).expect("a block deallocated once");
        state.usage.live = state.usage.live.wrapping_sub(bytes as u64);
        state.usage.retired += bytes as u64;
        state.retired.push((ptr, bytes));
        state.kept.push(block.generation());
        let reap_at_once = state.keeps_no_calls;
        drop(state);
        if reap_at_once {
            let _ = self.reap_pending();
        }
        Ok(if reap_at_once { BlockState::Freed } else { BlockState::Retired })
    }

    /// Grows a block as far as its reserved bytes go.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        let mut state = self.lock();
        state.grows += 1;
        if self.faults.failing_grows.contains(&state.grows) {
            return Err(ResourceError::driver("cuMemMap", 999, "CUDA_ERROR_UNKNOWN", 0));
        }
        if bytes > block.reserved_bytes() {
            return Ok(false);
        }
        let more = bytes.saturating_sub(block.bytes()) as u64;
        state.usage.live += more;
        state.usage.total_allocated += more;
        state.live.insert(block.generation(), (block.ptr(), bytes));
        // SAFETY: the bytes are reserved for the block, and there is no memory behind a fake.
        unsafe { block.set_sizes(bytes, block.reserved_bytes()) };
        Ok(true)
    }

    fn is_retired(&self, block: BlockId) -> bool {
        self.lock().kept.contains(&block.generation())
    }

    fn device_ordinal(&self) -> usize {
        0
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.pool
    }

    fn usage(&self) -> Usage {
        self.lock().usage
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.reap_pending()
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        let mut state = self.lock();
        state.kept.clear();
        for (ptr, bytes) in std::mem::take(&mut state.retired) {
            let reserved = bytes.next_multiple_of(256) as u64;
            state.free.entry(reserved).or_default().push(ptr);
        }
        let reaped = std::mem::take(&mut state.usage.retired);
        state.usage.total_freed += reaped;
        Ok(reaped)
    }
}

impl DeviceOps for Fake {
    fn fill_pattern(
        &self,
        block: &DeviceBlock,
        range: Range<usize>,
        pattern: u32,
        _stream: StreamId,
    ) -> ResourceResult<()> {
        let mut state = self.lock();
        state.fills += 1;
        let end = range.end + usize::from(self.faults.overrun == Some(state.fills));
        for at in range.start..end {
            let byte = pattern.to_le_bytes()[at % 4];
            state.memory.insert(block.ptr() + at as u64, byte);
        }
        Ok(())
    }

    fn check_pattern(
        &self,
        block: &DeviceBlock,
        mut range: Range<usize>,
        pattern: u32,
        _stream: StreamId,
        key: u64,
    ) -> ResourceResult<()> {
        let mut state = self.lock();
        let wrong = range.find(|&at| {
            let byte = state.memory.get(&(block.ptr() + at as u64));
            byte != Some(&pattern.to_le_bytes()[at % 4])
        });
        state.mismatches.extend(wrong.map(|offset| PatternMismatch { key, offset }));
        Ok(())
    }

    fn collect(&self) -> ResourceResult<Vec<PatternMismatch>> {
        if self.faults.no_verdicts {
            return Err(ResourceError::driver("cuStreamSynchronize", 700, "CUDA_ERROR", 0));
        }
        Ok(std::mem::take(&mut self.lock().mismatches))
    }

    fn synchronize(&self, _stream: StreamId) -> ResourceResult<()> {
        Ok(())
    }
}
