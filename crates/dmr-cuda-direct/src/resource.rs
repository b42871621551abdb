//! The resource: a table of what the driver gave, and a list of what goes back to it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use cudarc::driver::result;
use cudarc::driver::sys::CUresult;
use dmr_core::process::LeakedInChild;
use dmr_core::size::{BLOCK_ALIGNMENT, checked_round_up};
use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockSlot, BlockState, DeallocateError, DeviceBlock,
    DeviceMemoryResource, Generation, MemoryObserver, ResourceError, ResourceResult, StreamId,
    StreamPoolId, Usage,
};
use dmr_streams::{Device, RelaxedCapture, StreamPool};

/// Exactly one `cuMemAlloc` and one `cuMemFree` per block, of exactly the bytes asked for.
///
/// `reserved` is therefore always `live + retired`, and every byte past a block is past an
/// allocation of the driver.
///
/// # When memory is freed
///
/// `cuMemFree` waits until all work on the device is done, and holds every other thread's driver
/// calls up meanwhile. So [`deallocate`](DeviceMemoryResource::deallocate) only retires the block.
/// The driver gets it back at the start of the next
/// [`allocate`](DeviceMemoryResource::allocate), or in
/// [`try_reap`](DeviceMemoryResource::try_reap) and
/// [`reap_pending`](DeviceMemoryResource::reap_pending), which are the same here; these may wait.
/// Because `cuMemFree` waits, work on *any* stream may use a block until it is given back.
///
/// Uses are not tracked: work submitted after `deallocate` is not waited for.
///
/// # When a free fails
///
/// The block stays retired and accounted for; the others are freed all the same. A reap answers
/// the first error and can be repeated. `allocate` does not fail for it: if the memory it needs is
/// there, it has what it was asked for, and the block is tried again next time.
///
/// Dropping the resource frees what is retired, and waits for the device if anything is. Blocks still
/// handed out are leaked: something may be using them.
pub struct DirectCudaResource {
    streams: Arc<StreamPool>,
    observer: Option<Arc<dyn MemoryObserver>>,
    state: LeakedInChild<Mutex<State>>,
    /// Told when a sweep ends.
    sweep_ended: Condvar,
}

/// Never locked across a driver call.
#[derive(Default)]
struct State {
    /// What is handed out, by address.
    live: HashMap<u64, Generation>,
    retired: Vec<Retired>,
    /// Those, and what sweeps have in hand.
    kept: HashSet<Generation>,
    usage: Usage,
    /// How many sweeps (passes over the retired blocks) have begun.
    sweeps: u64,
    /// The numbers of those that have not ended.
    sweeping: Vec<u64>,
}

struct Retired {
    ptr: u64,
    bytes: u64,
    generation: Generation,
    /// Whether an observer still has it as a region.
    is_region: bool,
}

impl DirectCudaResource {
    /// A resource on the device of this pool, which accepts the pool's streams.
    #[must_use]
    pub fn new(streams: Arc<StreamPool>) -> Self {
        let (state, sweep_ended) = (LeakedInChild::default(), Condvar::new());
        Self { streams, observer: None, state, sweep_ended }
    }

    /// Reports each block to `observer` as a region outside of every heap, with its tag: for a tool
    /// that sees the driver's allocations by itself, and needs to know which of them are blocks. A
    /// region ends before the block's `cuMemFree`, which waits for the work with it. Call it before
    /// the first allocation; blocks that were handed out earlier are never regions.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn MemoryObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// The pool whose streams it accepts.
    #[must_use]
    pub fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    fn device(&self) -> &Device {
        self.streams.device()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alloc(&self, bytes: usize, _: &RelaxedCapture<'_>) -> ResourceResult<u64> {
        // SAFETY: the context is current on this thread.
        unsafe { result::malloc_sync(bytes) }.map_err(|error| {
            if error.0 != CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                return self.device().driver_error("cuMemAlloc", error);
            }
            let ordinal = self.device().ordinal();
            let memory = self.device().memory_info().unwrap_or_default();
            ResourceError::out_of_memory(bytes, ordinal, memory, &self.usage())
        })
    }

    /// What the driver's frees need; `None` on a lost device, whose memory is gone with the context.
    fn relaxed(&self) -> ResourceResult<Option<RelaxedCapture<'_>>> {
        match self.device().relaxed() {
            Ok(relaxed) => Ok(Some(relaxed)),
            Err(ResourceError::DeviceLost { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Frees everything that was retired before the call; returns the bytes that this call freed,
    /// and the first error.
    fn free_retired(&self, relaxed: Option<&RelaxedCapture<'_>>) -> (u64, ResourceResult<()>) {
        let (freed, outcome) = self.sweep(relaxed);
        // What another thread was freeing was retired before the call, too. Wait for it, and see
        // to what it could not free.
        if !self.wait_for_other_sweeps() {
            return (freed, outcome);
        }
        let (more, again) = self.sweep(relaxed);
        (freed + more, outcome.and(again))
    }

    /// One pass over the retired blocks.
    fn sweep(&self, relaxed: Option<&RelaxedCapture<'_>>) -> (u64, ResourceResult<()>) {
        let (number, mut blocks) = {
            let mut state = self.state();
            if state.retired.is_empty() {
                return (0, Ok(()));
            }
            state.sweeps += 1;
            let number = state.sweeps;
            state.sweeping.push(number);
            (number, std::mem::take(&mut state.retired))
        };
        let (mut freed, mut outcome) = (0, Ok(()));
        for mut block in blocks.drain(..) {
            if let Some(observer) = self.observer.as_ref().filter(|_| block.is_region) {
                block.is_region = false;
                // Afterwards another thread's allocation may have the address.
                observer.region_freed(block.ptr, block.generation);
            }
            let result = match relaxed.filter(|relaxed| !relaxed.device().is_lost()) {
                None => Ok(()),
                // SAFETY: the block came from cuMemAlloc in this context, which is current, was given
                // back by its owner, and left the list of retired blocks for this sweep alone.
                Some(_) => unsafe { result::free_sync(block.ptr) },
            };
            let mut state = self.state();
            match result {
                Ok(()) => {
                    freed += block.bytes;
                    state.kept.remove(&block.generation);
                    state.usage.retired -= block.bytes;
                    state.usage.reserved -= block.bytes;
                    state.usage.total_freed += block.bytes;
                }
                Err(error) => {
                    state.retired.push(block);
                    drop(state);
                    outcome = outcome.and(Err(self.device().driver_error("cuMemFree", error)));
                }
            }
        }
        let mut state = self.state();
        state.sweeping.retain(|&other| other != number);
        if state.retired.is_empty() {
            state.retired = blocks; // for its room on the host heap
        }
        drop(state);
        self.sweep_ended.notify_all();
        (freed, outcome)
    }

    /// Waits for the sweeps that other threads have begun by now; answers whether there were any.
    fn wait_for_other_sweeps(&self) -> bool {
        let state = self.state();
        if state.sweeping.is_empty() {
            return false;
        }
        let begun = state.sweeps;
        let ended = |state: &mut State| state.sweeping.iter().any(|&number| number <= begun);
        drop(self.sweep_ended.wait_while(state, ended).unwrap_or_else(PoisonError::into_inner));
        true
    }

    fn reap(&self) -> ResourceResult<u64> {
        let relaxed = self.relaxed()?;
        let (freed, outcome) = self.free_retired(relaxed.as_ref());
        outcome.map(|()| freed)
    }
}

impl DeviceMemoryResource for DirectCudaResource {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        checked_round_up(bytes, BLOCK_ALIGNMENT)?;
        let total = self.device().total_memory();
        if bytes as u64 > total {
            return Err(ResourceError::beyond_device(bytes, total));
        }
        let stream = self.streams.enter(stream)?;
        let relaxed = self.device().relaxed()?;
        // A block that cannot be freed is still retired, and no reason to refuse this one.
        let _ = self.free_retired(Some(&relaxed));
        let ptr = self.alloc(bytes, &relaxed)?;
        drop(relaxed);
        let generation = Generation::next();
        {
            let mut state = self.state();
            state.live.insert(ptr, generation);
            state.usage.live += bytes as u64;
            state.usage.reserved += bytes as u64;
            state.usage.total_allocated += bytes as u64;
        }
        if let Some(observer) = &self.observer {
            observer.region_allocated(ptr, bytes, tag, generation);
        }
        // SAFETY: cuMemAlloc has just given these bytes, aligned to 256; they stay allocated until
        // `deallocate` takes the block back; the generation is new.
        Ok(unsafe {
            DeviceBlock::from_parts(BlockParts {
                ptr,
                bytes,
                reserved_bytes: bytes,
                alignment: BLOCK_ALIGNMENT,
                device_ordinal: self.device_ordinal(),
                alloc_stream: stream.id(),
                tag,
                generation,
                slot: BlockSlot::NONE,
                state: BlockState::Live,
                part_depth: 0,
            })
        })
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let refused = self.device().refuse_fork().and_then(|()| block.require_part_depth(0));
        if let Err(error) = refused {
            return Err(DeallocateError::new(error, block));
        }
        let (ptr, generation, bytes) = (block.ptr(), block.generation(), block.bytes() as u64);
        let mut state = self.state();
        if state.live.get(&ptr) != Some(&generation) {
            let was_ours = state.kept.contains(&generation);
            drop(state);
            let error = if was_ours {
                ResourceError::use_after_free(generation)
            } else {
                ResourceError::foreign_block(&block, self.device_ordinal())
            };
            return Err(DeallocateError::new(error, block));
        }
        state.live.remove(&ptr);
        state.retired.push(Retired { ptr, bytes, generation, is_region: true });
        state.usage.live -= bytes;
        state.usage.retired += bytes;
        state.kept.insert(generation);
        Ok(BlockState::Retired)
    }

    /// Grows nothing: the driver does not.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.device().refuse_fork()?;
        block.require_part_depth(0)?;
        Ok(bytes <= block.bytes())
    }

    fn is_retired(&self, block: BlockId) -> bool {
        !self.device().is_forked() && self.state().kept.contains(&block.generation())
    }

    fn device_ordinal(&self) -> usize {
        self.device().ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.streams.id()
    }

    fn usage(&self) -> Usage {
        if self.device().is_forked() { Usage::default() } else { self.state().usage }
    }

    /// Waits for the device if anything is retired: the driver's free does.
    fn try_reap(&self) -> ResourceResult<u64> {
        self.reap()
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.reap()
    }

    /// Does what [`try_reap`](DeviceMemoryResource::try_reap) does, whatever `keep_bytes` is: this
    /// resource keeps no free memory.
    fn trim_to(&self, _: u64) -> ResourceResult<u64> {
        self.reap()
    }
}

impl Drop for DirectCudaResource {
    fn drop(&mut self) {
        if let Ok(relaxed) = self.relaxed() {
            let _ = self.sweep(relaxed.as_ref());
        }
    }
}

/// `Direct(device 0)`.
impl fmt::Display for DirectCudaResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Direct(device {})", self.device_ordinal())
    }
}

impl fmt::Debug for DirectCudaResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
