//! The resource: blocks, each with addresses and memory of its own.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dmr_core::process::LeakedInChild;
use dmr_core::size::checked_round_up;
use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockSlot, BlockState, DeallocateError, DeviceBlock,
    DeviceMemoryResource, Generation, PhysicalMemory, ResourceError, ResourceResult, StreamId,
    StreamPoolId, Usage, VirtualMemory,
};
use dmr_streams::uses::Patience;
use dmr_streams::{Device, StreamPool};

use crate::driver::Driver;
use crate::pages::Pages;
use crate::retired::{Remains, Retired};
use crate::{VirtualConfig, VirtualMemoryError};

/// Memory that is mapped where it is wanted: by a pool that places pages itself, through
/// [`virtual_memory`](DeviceMemoryResource::virtual_memory), or in blocks.
///
/// A block is a range of addresses and one piece of physical memory, both of the bytes asked for
/// rounded up to the [granularity](VirtualMemory::granularity) (2 MiB on every device known): what
/// is rounded up shows in `reserved` of [`usage`](DeviceMemoryResource::usage), as memory does that
/// was created without a block. (A budget charges blocks by the bytes asked for, and pages by their
/// size.) Making one and taking it apart are seven calls of the driver, a hundred microseconds:
/// this is a source for pools.
///
/// # When memory is freed
///
/// The driver unmaps without waiting, so nothing may use the memory any more. So
/// [`deallocate`](DeviceMemoryResource::deallocate) only retires the block. The next
/// [`allocate`](DeviceMemoryResource::allocate),
/// [`try_reap`](DeviceMemoryResource::try_reap) or
/// [`reap_pending`](DeviceMemoryResource::reap_pending) records an event on its home stream, one
/// for all blocks of that stream, and when that is done the block is unmapped and its memory
/// destroyed. `allocate` and `try_reap` ask and wait for nothing, `reap_pending` waits; so does
/// `allocate` if the device has no room otherwise.
///
/// Uses are not tracked: work on another stream than the home stream must be done, or the home
/// stream made to wait for it, before the block is given back. [`Tracked`](dmr_streams::Tracked)
/// sees to that.
///
/// # When a call fails
///
/// What was done is undone. What cannot be undone is kept, counted in `reserved`, and tried again
/// by every reap and allocation. A reap answers the first error and sees to the rest.
///
/// # When the device is lost
///
/// Allocations fail, and blocks are taken back without a call to the driver, whose memory is gone
/// with the context.
///
/// # Dropping it
///
/// Frees what is retired, and waits for the home streams of that. Blocks, memory and addresses
/// still handed out are leaked: something may be using them.
pub struct VirtualCudaResource {
    pub(crate) driver: Driver,
    pub(crate) pages: LeakedInChild<Pages>,
    pub(crate) streams: Arc<StreamPool>,
    state: LeakedInChild<Mutex<State>>,
    /// Held while retired blocks are freed, so that a reap that waits also waits for what another
    /// thread has in hand.
    pub(crate) reaping: Mutex<()>,
}

/// Never locked across a driver call.
#[derive(Default)]
pub(crate) struct State {
    /// What is handed out, by address.
    live: HashMap<u64, Live>,
    pub(crate) retired: Vec<Retired>,
    /// Those, and what a sweep has in hand.
    pub(crate) kept: HashSet<Generation>,
    /// But for `reserved`, which [`Pages`] counts.
    pub(crate) usage: Usage,
}

struct Live {
    generation: Generation,
    remains: Remains,
}

impl VirtualCudaResource {
    /// A resource on the device of this pool, which accepts the pool's streams.
    ///
    /// # Errors
    ///
    /// [`VirtualMemoryError`] if the device has no virtual memory, or not as configured.
    pub fn new(
        streams: Arc<StreamPool>,
        config: VirtualConfig,
    ) -> Result<Self, VirtualMemoryError> {
        let driver = Driver::new(streams.device(), config)?;
        let (pages, state, reaping) = Default::default();
        Ok(Self { driver, pages, streams, state, reaping })
    }

    /// The pool whose streams it accepts.
    #[must_use]
    pub fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    pub(crate) fn device(&self) -> &Device {
        self.streams.device()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn out_of_memory(&self, requested: usize) -> ResourceError {
        let memory = self.device().memory_info().unwrap_or_default();
        ResourceError::out_of_memory(requested, self.device().ordinal(), memory, &self.usage())
    }

    /// Addresses with memory under them; or nothing has changed, but for what could not be undone.
    fn take(&self, bytes: usize, rounded: u64, tag: AllocTag) -> ResourceResult<(u64, Remains)> {
        let range = self.reserve(rounded)?;
        let base = range.base();
        let mut remains = Remains { mapped: false, memory: None, range: Some(range) };
        let mapped = self.take_memory(bytes, rounded, tag).and_then(|memory| {
            let mapped = self.map(&memory, base);
            remains.memory = Some(memory);
            mapped
        });
        match mapped {
            Ok(()) => Ok((base, Remains { mapped: true, ..remains })),
            Err(error) => {
                self.abandon(remains);
                Err(error)
            }
        }
    }

    fn take_memory(
        &self,
        bytes: usize,
        rounded: u64,
        tag: AllocTag,
    ) -> ResourceResult<PhysicalMemory> {
        if let Some(memory) = self.try_create(rounded, tag)? {
            return Ok(memory);
        }
        // What cannot be freed stays retired.
        let _ = self.sweep(Patience::Wait);
        self.try_create(rounded, tag)?.ok_or_else(|| self.out_of_memory(bytes))
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
        // A block that cannot be freed is still retired, and no reason to refuse this one.
        let _ = self.try_sweep();
        let (ptr, remains) = self.take(bytes, reserved_bytes as u64, tag)?;
        let generation = Generation::next();
        {
            let mut state = self.state();
            state.live.insert(ptr, Live { generation, remains });
            state.usage.live += bytes as u64;
            state.usage.total_allocated += bytes as u64;
        }
        // SAFETY: these addresses were reserved for this block, and memory that is nobody else's is
        // mapped there until `deallocate` takes the block back; the generation is new.
        Ok(unsafe {
            DeviceBlock::from_parts(BlockParts {
                ptr,
                bytes,
                reserved_bytes,
                alignment: granularity,
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
        let (ptr, generation, home) = (block.ptr(), block.generation(), block.alloc_stream());
        let refuse = |error, block| Err(DeallocateError::new(error, block));
        // First: another thread may have held a lock when the process was forked.
        let refused = self.device().refuse_fork().and_then(|()| block.require_part_depth(0));
        if let Err(error) = refused {
            return refuse(error, block);
        }
        let not_ours = |state: &State| match state.live.get(&ptr) {
            Some(live) if live.generation == generation => None,
            _ if state.kept.contains(&generation) => {
                Some(ResourceError::use_after_free(generation))
            }
            _ => Some(ResourceError::foreign_block(&block, self.device_ordinal())),
        };
        let found = not_ours(&self.state());
        if let Some(error) = found {
            return refuse(error, block);
        }
        // The driver call that asked may be the one that finds the device lost.
        if !self.device().is_lost()
            && let Err(error) = self.streams.enter_home(home).and_then(|home| home.refuse_capture())
            && !self.device().is_lost()
        {
            return refuse(error, block);
        }
        let mut state = self.state();
        let Some(Live { remains, .. }) = state.live.remove(&ptr) else {
            drop(state);
            return refuse(ResourceError::use_after_free(generation), block);
        };
        let bytes = block.bytes() as u64;
        let submitted = self.streams.uses().submitted(home);
        state.retired.push(Retired::block(remains, home, submitted, generation, bytes));
        state.usage.live -= bytes;
        state.usage.retired += bytes;
        state.kept.insert(generation);
        Ok(BlockState::Retired)
    }

    /// Grows nothing: the addresses behind a block are not reserved for it.
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

    /// `reserved` is all memory that was created and not destroyed, with and without a block.
    fn usage(&self) -> Usage {
        if self.device().is_forked() {
            return Usage::default();
        }
        let mut usage = self.state().usage;
        usage.reserved = self.pages.bytes();
        usage
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.device().refuse_fork()?;
        let (freed, outcome) = self.try_sweep();
        outcome.map(|()| freed)
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.device().refuse_fork()?;
        let (freed, outcome) = self.sweep(Patience::Wait);
        outcome.map(|()| freed)
    }

    /// Takes retired blocks apart, whatever `keep_bytes` is: it keeps no other free memory.
    fn trim_to(&self, _: u64) -> ResourceResult<u64> {
        self.device().refuse_fork()?;
        let before = self.pages.bytes();
        let (_, outcome) = self.try_sweep();
        outcome.map(|()| before.saturating_sub(self.pages.bytes()))
    }

    /// Itself: what its blocks are made of, to be put together by somebody else.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        Some(self)
    }
}

impl Drop for VirtualCudaResource {
    fn drop(&mut self) {
        if self.device().refuse_fork().is_ok() {
            let _ = self.sweep(Patience::Wait);
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
