//! The resource: a source of pages for pools, and blocks with addresses and memory of their own.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use dmr_core::process::LeakedInChild;
use dmr_core::size::checked_round_up;
use dmr_core::sync::lock;
use dmr_core::waits::wait_without_limit;
use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockSlot, BlockState, DeallocateError, DeviceBlock,
    DeviceMemoryResource, DriverAllocation, Generation, PeerAccess, ResourceError, ResourceResult,
    StreamId, StreamPoolId, Usage, VirtualMemory,
};
use dmr_streams::uses::{Patience, PendingFrees};
use dmr_streams::{Device, StreamPool};

use crate::driver::Driver;
use crate::memory::Memory;
use crate::retired::{Backing, RetiredBlock};
use crate::{VirtualConfig, VirtualMemoryError};

/// Mapped memory: as pages for a pool, through
/// [`virtual_memory`](DeviceMemoryResource::virtual_memory), and as blocks.
///
/// A block is a range of addresses and one piece of physical memory, both of the requested bytes
/// rounded up to the [granularity](VirtualMemory::granularity) (2 MiB on every known device).
/// `reserved` of [`usage`](DeviceMemoryResource::usage) includes the bytes that rounding adds, and
/// memory that was created without a block. (A budget charges blocks by the requested bytes, and
/// pages by their size.) To make a block and free it takes seven driver calls, 100 µs: blocks of
/// this resource are for pools to carve up.
///
/// # When memory is freed
///
/// The driver unmaps without waiting for work that uses the memory. So
/// [`deallocate`](DeviceMemoryResource::deallocate) only retires the block. The next
/// [`allocate`](DeviceMemoryResource::allocate), [`try_reap`](DeviceMemoryResource::try_reap) or
/// [`reap_pending`](DeviceMemoryResource::reap_pending) looks for an event on its home stream that
/// was recorded after `deallocate`, or records one for all retired blocks of the stream; when it is
/// complete, the block is unmapped and its memory destroyed. `allocate` and `try_reap` query the
/// event, `reap_pending` waits for it; so does `allocate` if the device has too little memory
/// otherwise.
///
/// Uses are not tracked: before a block is deallocated, work on other streams must be complete, or
/// its home stream must have been made to wait for it. [`Tracked`](dmr_streams::Tracked) does that.
///
/// # When a call fails
///
/// It undoes its steps. What cannot be undone is kept, counted in `reserved`, and freed by a later
/// call. A reap returns the first error and frees the other blocks.
///
/// # When the device is lost
///
/// Allocations fail. `deallocate` and reaping succeed without a driver call: the memory is gone
/// with the context.
///
/// # Dropping it
///
/// Frees the retired blocks, and waits for their home streams. Blocks, memory and addresses that
/// are still in use are leaked.
pub struct VirtualCudaResource {
    pub(crate) driver: Driver,
    pub(crate) memory: LeakedInChild<Memory>,
    pub(crate) streams: Arc<StreamPool>,
    state: LeakedInChild<Mutex<State>>,
    pub(crate) pending: LeakedInChild<PendingFrees<RetiredBlock>>,
}

/// Never locked across a driver call.
#[derive(Default)]
pub(crate) struct State {
    /// By address.
    live: HashMap<u64, LiveBlock>,
    /// Of the pending blocks, and of those that a sweep is freeing.
    pub(crate) retired: HashSet<Generation>,
    /// Without `reserved`, which [`Memory`] counts.
    pub(crate) usage: Usage,
}

struct LiveBlock {
    generation: Generation,
    backing: Backing,
}

impl VirtualCudaResource {
    /// Makes a resource on the device of this pool, which accepts the pool's streams.
    ///
    /// # Errors
    ///
    /// [`VirtualMemoryError`] if the device has no virtual memory, or not as configured.
    pub fn new(
        streams: Arc<StreamPool>,
        config: VirtualConfig,
    ) -> Result<Self, VirtualMemoryError> {
        let driver = Driver::new(streams.device(), config)?;
        let (memory, state) = Default::default();
        let pending = LeakedInChild::new(PendingFrees::new(1, RetiredBlock::bytes));
        Ok(Self { driver, memory, streams, state, pending })
    }

    /// Returns the pool whose streams it accepts.
    #[must_use]
    pub fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    pub(crate) fn device(&self) -> &Device {
        self.streams.device()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn out_of_memory(&self, requested: usize) -> ResourceError {
        let memory = self.device().memory_info().unwrap_or_default();
        ResourceError::out_of_memory(requested, self.device().ordinal(), memory, &self.usage())
    }

    /// Checks that `deallocate` may take the block: it is live, and its home stream does not
    /// capture.
    fn check_deallocate(&self, block: &DeviceBlock) -> ResourceResult<()> {
        // First: another thread may have held a lock when the process was forked.
        self.device().refuse_fork()?;
        block.require_part_depth(0)?;
        self.check_live(&self.state(), block)?;
        if self.device().is_lost() {
            return Ok(());
        }
        match self.streams.enter_home(block.alloc_stream()).and_then(|home| home.refuse_capture()) {
            // This driver call may be the one that finds the device lost.
            Err(_) if self.device().is_lost() => Ok(()),
            result => result,
        }
    }

    fn check_live(&self, state: &State, block: &DeviceBlock) -> ResourceResult<()> {
        let generation = block.generation();
        match state.live.get(&block.ptr()) {
            Some(live) if live.generation == generation => Ok(()),
            _ if state.retired.contains(&generation) => {
                Err(ResourceError::use_after_free(generation))
            }
            _ => Err(ResourceError::foreign_block(block, self.device_ordinal())),
        }
    }
}

impl DeviceMemoryResource for VirtualCudaResource {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let granularity = self.driver.granularity() as usize;
        let reserved_bytes = checked_round_up(bytes, granularity)?;
        let total = self.device().total_memory();
        if bytes as u64 > total {
            return Err(ResourceError::beyond_device(bytes, total));
        }
        let stream = self.streams.enter(stream)?;
        self.device().bind()?;
        stream.refuse_capture()?;
        // A block that cannot be freed stays retired: this one may be allocated all the same.
        let _ = self.sweep(Patience::Poll);
        let memory = self.create_or_wait(reserved_bytes as u64, tag)?;
        let memory = memory.ok_or_else(|| {
            let refused = self.out_of_memory(bytes);
            stream.record_refusal(bytes, tag, &refused);
            refused
        })?;
        let home = stream.id();
        let generation = Generation::next();
        let backing = self.make_backing(memory, home, generation)?;
        let ptr = backing.base;
        {
            let mut state = self.state();
            state.live.insert(ptr, LiveBlock { generation, backing });
            state.usage.live += bytes as u64;
            state.usage.total_allocated += bytes as u64;
        }
        // SAFETY: these addresses were reserved for this block, and memory that no other block has
        // is mapped there until `deallocate` takes the block; the generation is new.
        Ok(unsafe {
            DeviceBlock::from_parts(BlockParts {
                ptr,
                bytes,
                reserved_bytes,
                alignment: granularity,
                device_ordinal: self.device_ordinal(),
                alloc_stream: home,
                tag,
                generation,
                slot: BlockSlot::NONE,
                state: BlockState::Live,
                part_depth: 0,
            })
        })
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        if let Err(error) = self.check_deallocate(&block) {
            return Err(DeallocateError::new(error, block));
        }
        let mut state = self.state();
        let Some(LiveBlock { backing, .. }) = state.live.remove(&block.ptr()) else {
            drop(state);
            let error = ResourceError::use_after_free(block.generation());
            return Err(DeallocateError::new(error, block));
        };
        state.usage.live -= block.bytes() as u64;
        state.usage.retired += block.bytes() as u64;
        state.retired.insert(block.generation());
        drop(state);
        self.retire(&block, backing);
        Ok(BlockState::Retired)
    }

    /// Gives no block away: the driver frees no mapped memory by its address.
    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        let refused = ResourceError::not_given_away(&block, "the backend of mapped memory");
        Err(DeallocateError::new(refused, block))
    }

    /// Returns whether the block has `bytes` bytes already: the addresses behind it are not
    /// reserved for it.
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

    /// Counts in `reserved` all memory that is created and not destroyed, with and without a block.
    fn usage(&self) -> Usage {
        if self.device().is_forked() {
            return Usage::default();
        }
        let mut usage = self.state().usage;
        usage.reserved = self.memory.bytes();
        usage
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.device().refuse_fork()?;
        self.sweep(Patience::Poll)
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.device().refuse_fork()?;
        self.sweep(Patience::Wait)
    }

    /// Frees retired blocks that are done, whatever `keep_bytes` is: it keeps no other free memory.
    fn trim_to(&self, _: u64) -> ResourceResult<u64> {
        self.device().refuse_fork()?;
        let before = self.memory.bytes();
        self.sweep(Patience::Poll)?;
        Ok(before.saturating_sub(self.memory.bytes()))
    }

    /// Sets the access of every mapping, one driver call for each, and of those that are made
    /// later.
    fn allow_access(&self, device_ordinal: usize) -> ResourceResult<PeerAccess> {
        self.add_peer(device_ordinal)?;
        Ok(PeerAccess::Granted)
    }

    /// Returns the resource itself: pages and blocks are made of the same memory.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        Some(self)
    }
}

impl Drop for VirtualCudaResource {
    fn drop(&mut self) {
        if self.device().refuse_fork().is_ok() {
            let _ = wait_without_limit(|| self.sweep(Patience::Wait));
        }
    }
}

/// `Virtual(device 0)`.
impl fmt::Display for VirtualCudaResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Virtual(device {})", self.device_ordinal())
    }
}

impl fmt::Debug for VirtualCudaResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
