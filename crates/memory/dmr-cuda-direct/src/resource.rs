//! The direct backend: a table of live blocks, and a list of retired blocks to free.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::result;
use cudarc::driver::sys::CUresult;
use dmr_core::process::LeakedInChild;
use dmr_core::size::{BLOCK_ALIGNMENT, checked_round_up};
use dmr_core::sync::lock;
use dmr_core::waits::wait_without_limit;
use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockSlot, BlockState, CaughtObserver, DeallocateError,
    DeviceBlock, DeviceMemoryResource, DriverAllocation, Generation, MemoryObserver, PeerAccess,
    ResourceError, ResourceResult, StreamId, StreamPoolId, Usage,
};
use dmr_recorder::hooks;
use dmr_streams::uses::{Dependencies, Patience, Pending, PendingFrees};
use dmr_streams::{Device, RelaxedCapture, StreamPool};

/// A resource with exactly one `cuMemAlloc` and one `cuMemFree` per block, of exactly the requested
/// bytes.
///
/// So `reserved` is always `live + retired`, and every byte past a block is past an allocation of
/// the driver.
///
/// # When memory is freed
///
/// `cuMemFree` waits until all work on the device is done, and meanwhile blocks the driver calls of
/// all other threads. So [`deallocate`](DeviceMemoryResource::deallocate) only retires the block.
/// It is freed at the start of the next [`allocate`](DeviceMemoryResource::allocate), or by
/// [`try_reap`](DeviceMemoryResource::try_reap) and
/// [`reap_pending`](DeviceMemoryResource::reap_pending), which do the same here; all of these may
/// wait. Because `cuMemFree` waits, work on *any* stream may use a block until it is deallocated.
///
/// Kernels of another device, which has [access](DeviceMemoryResource::allow_access), are no work
/// of this device: from then on a free also waits for all work that was submitted to the block's
/// home stream before it was deallocated, and that stream must have been made to wait for them.
///
/// Uses are not tracked: a free need not wait for work that is submitted after `deallocate`.
///
/// # When a free fails
///
/// The block stays retired and counted; the others are freed all the same. A reap returns the first
/// error, and can be repeated. `allocate` does not return the error: it fails only if there is too
/// little memory.
///
/// Dropping the resource frees the retired blocks, and waits for the device if there are any. Live
/// blocks are leaked: work may be using them.
pub struct DirectCudaResource {
    streams: Arc<StreamPool>,
    observer: Option<CaughtObserver>,
    state: LeakedInChild<Mutex<State>>,
    pending: LeakedInChild<PendingFrees<RetiredBlock>>,
    /// Kernels of other devices may use the blocks. `cuMemFree` ends their access before it waits
    /// for the streams of this device.
    has_peers: AtomicBool,
}

/// The name of the resource in errors, when other devices have access.
const WITH_PEERS: &str = "the direct backend, whose memory other devices access,";

/// Never locked across a driver call.
#[derive(Default)]
struct State {
    /// By address.
    live: HashMap<u64, Generation>,
    /// Of the pending blocks, and of those that a thread is freeing.
    retired: HashSet<Generation>,
    usage: Usage,
}

impl State {
    /// Removes a live block from the table, and its bytes from those of live blocks.
    ///
    /// # Errors
    ///
    /// [`UseAfterFree`](ResourceError::UseAfterFree) for a retired block, and
    /// [`ForeignBlock`](ResourceError::ForeignBlock).
    fn remove_live(&mut self, block: &DeviceBlock, device_ordinal: usize) -> ResourceResult<()> {
        let ptr = block.ptr();
        let generation = block.generation();
        if self.live.get(&ptr) != Some(&generation) {
            return Err(match self.retired.contains(&generation) {
                true => ResourceError::use_after_free(generation),
                false => ResourceError::foreign_block(block, device_ordinal),
            });
        }
        self.live.remove(&ptr);
        self.usage.live -= block.bytes() as u64;
        Ok(())
    }
}

/// A block that was deallocated and is not freed.
struct RetiredBlock {
    ptr: u64,
    bytes: u64,
    generation: Generation,
    /// True if it is a region of an observer.
    is_region: bool,
}

impl DirectCudaResource {
    /// Makes a resource on the device of this pool, which accepts the pool's streams.
    #[must_use]
    pub fn new(streams: Arc<StreamPool>) -> Self {
        let pending = PendingFrees::new(1, |block: &RetiredBlock| block.bytes);
        let state = LeakedInChild::default();
        let pending = LeakedInChild::new(pending);
        Self { streams, observer: None, state, pending, has_peers: AtomicBool::new(false) }
    }

    /// Reports each block to `observer` as a region outside of every heap, with its tag: for a tool
    /// that detects the driver's allocations by itself, and has to tell which of them are blocks. A
    /// region ends before the block's `cuMemFree`, which waits for the work that uses it. Call it
    /// before the first allocation: earlier blocks do not become regions.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn MemoryObserver>) -> Self {
        self.observer = Some(CaughtObserver::new(observer));
        self
    }

    /// Returns how often the observer has panicked: each panic is caught, and costs the report.
    #[must_use]
    pub fn observer_panics(&self) -> u64 {
        self.observer.as_ref().map_or(0, CaughtObserver::panics)
    }

    /// Returns the pool whose streams it accepts.
    #[must_use]
    pub fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    fn device(&self) -> &Device {
        self.streams.device()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn allocate_bytes(&self, bytes: usize, _: &RelaxedCapture<'_>) -> ResourceResult<u64> {
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

    /// Frees everything that was retired before the call; waits for another thread that is freeing
    /// blocks. Makes no driver call without `relaxed`, on a lost device, whose memory is gone with
    /// the context. Returns the bytes that this call has freed.
    ///
    /// # Errors
    ///
    /// The first; the other blocks are freed all the same.
    fn free_retired(&self, relaxed: Option<&RelaxedCapture<'_>>) -> ResourceResult<u64> {
        let mut freed = 0;
        self.pending.reap(Patience::Wait, |pending| {
            if relaxed.is_some() && !pending.after.is_empty() && !self.device().is_lost() {
                self.streams.uses().synchronize(&pending.after)?;
                pending.after = Dependencies::default();
            }
            let RetiredBlock { ptr, bytes, generation, is_region } = &mut pending.value;
            if let Some(observer) = &self.observer
                && std::mem::take(is_region)
            {
                // After the free, another thread's allocation may have the address.
                observer.region_freed(*ptr, *generation);
            }
            if relaxed.is_some() && !self.device().is_lost() {
                // SAFETY: the block is from cuMemAlloc in this context, which is current; its owner
                // has deallocated it; only this call has removed it from the pending blocks.
                unsafe { result::free_sync(*ptr) }
                    .map_err(|error| self.device().driver_error("cuMemFree", error))?;
            }
            let mut state = self.state();
            state.retired.remove(generation);
            state.usage.retired -= *bytes;
            state.usage.reserved -= *bytes;
            state.usage.total_freed += *bytes;
            freed += *bytes;
            Ok(true)
        })?;
        Ok(freed)
    }

    /// Removes a live block that is given away: counts it as freed, and makes no driver call.
    fn remove_given_away(&self, block: &DeviceBlock) -> ResourceResult<()> {
        self.device().check()?;
        block.require_part_depth(0)?;
        // A layer that tracks uses passes a block on without the slot that it has given it.
        if block.id().slot() != BlockSlot::NONE {
            return Err(ResourceError::foreign_block(block, self.device_ordinal()));
        }
        // The driver's free on a stream may end their access before their work is done, as
        // `cuMemFree` does.
        if self.has_peers.load(Ordering::Acquire) {
            return Err(ResourceError::not_given_away(block, WITH_PEERS));
        }
        let mut state = self.state();
        state.remove_live(block, self.device_ordinal())?;
        state.usage.reserved -= block.bytes() as u64;
        state.usage.total_freed += block.bytes() as u64;
        Ok(())
    }

    fn reap(&self) -> ResourceResult<u64> {
        match self.device().check() {
            Err(ResourceError::DeviceLost { .. }) => self.free_retired(None),
            _ => self.device().relaxed(|relaxed| self.free_retired(Some(relaxed))),
        }
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
        let allocated = self.device().relaxed(|relaxed| {
            // A block that cannot be freed stays retired: this one may be allocated all the same.
            let _ = self.free_retired(Some(relaxed));
            self.allocate_bytes(bytes, relaxed)
        });
        let ptr = allocated.inspect_err(|error| stream.record_refusal(bytes, tag, error))?;
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
        // SAFETY: cuMemAlloc has just allocated these bytes, aligned to 256; they stay allocated
        // until `deallocate` takes the block; the generation is new.
        let block = unsafe {
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
        };
        hooks::allocated(|| (&block).into());
        Ok(block)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let refused = self.device().refuse_fork().and_then(|()| block.require_part_depth(0));
        if let Err(error) = refused {
            return Err(DeallocateError::new(error, block));
        }
        let ptr = block.ptr();
        let generation = block.generation();
        let bytes = block.bytes() as u64;
        let mut state = self.state();
        if let Err(error) = state.remove_live(&block, self.device_ordinal()) {
            drop(state);
            return Err(DeallocateError::new(error, block));
        }
        state.usage.retired += bytes;
        state.retired.insert(generation);
        drop(state);
        hooks::freed(true, || (&block).into());
        let value = RetiredBlock { ptr, bytes, generation, is_region: true };
        let home = block.alloc_stream();
        let after = match self.has_peers.load(Ordering::Acquire) {
            // The block's home stream is in the pool: `allocate` has entered it.
            true => self.streams.uses().work_so_far(home).unwrap_or_default(),
            false => Dependencies::default(),
        };
        self.pending.push(home, Pending { value, after });
        Ok(BlockState::Retired)
    }

    /// Uses are not tracked: order them before the home stream's next work. With a
    /// [tracking](dmr_streams::Tracked) layer around it, that layer does.
    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        if let Err(error) = self.remove_given_away(&block) {
            return Err(DeallocateError::new(error, block));
        }
        if let Some(observer) = &self.observer {
            observer.region_freed(block.ptr(), block.generation());
        }
        // SAFETY: the block is from cuMemAlloc, and is not in the table any more, so it is not
        // freed here. No uses are recorded.
        Ok(unsafe { DriverAllocation::from_block(block) })
    }

    /// Returns whether the block has `bytes` bytes already: the driver cannot grow an allocation.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.device().refuse_fork()?;
        block.require_part_depth(0)?;
        Ok(bytes <= block.bytes())
    }

    fn is_retired(&self, block: BlockId) -> bool {
        !self.device().is_forked() && self.state().retired.contains(&block.generation())
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

    /// Waits for the device if a block is retired, because `cuMemFree` does.
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

    fn allow_access(&self, _: usize) -> ResourceResult<PeerAccess> {
        self.device().refuse_fork()?;
        self.has_peers.store(true, Ordering::Release);
        Ok(PeerAccess::ByContext)
    }
}

impl Drop for DirectCudaResource {
    fn drop(&mut self) {
        // In a forked child nothing is freed.
        let _ = wait_without_limit(|| self.reap());
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
