//! A resource of RMM as one of dmr: the blocks that are live, and the streams that RMM has met.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dmr_core::error::Limit;
use dmr_core::process::LeakedInChild;
use dmr_core::size::{BLOCK_ALIGNMENT, checked_round_up};
use dmr_core::sync::lock;
use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockSlot, BlockState, DeallocateError, DeviceBlock,
    DeviceMemoryResource, Generation, ResourceError, ResourceResult, StreamId, StreamPoolId, Usage,
};
use dmr_streams::uses::Dependencies;
use dmr_streams::{Device, HomeStream, StreamGuard, StreamPool};

use crate::raw::{RawResource, Thrown};
use crate::{Rmm, RmmConfig, RmmKind};

/// The name of the library in errors.
const LIBRARY: &str = "RMM";

/// One resource of RMM, on the streams of a pool.
///
/// # Order
///
/// An allocation is RMM's on the handle of the block's home stream, and so is the deallocation:
/// RMM orders the memory's next owner behind the work on that stream. Uses on other streams are not
/// tracked; [`Tracked`](dmr_streams::Tracked) around it deallocates a block only when they are
/// done, or the home stream waits for them.
///
/// [`deallocate`](DeviceMemoryResource::deallocate) frees a block at once, for the next allocation
/// on its home stream. With [`Cuda`](RmmKind::Cuda) it waits for the device, as `cudaFree` does.
///
/// RMM tells streams apart by their handles. A handle that the driver has given to another stream,
/// after an adopted one was destroyed, is found at its first allocation, which then waits for all
/// streams of the pool.
///
/// # What RMM does not do
///
/// RMM's pools give no memory back to the device. So a trim drops RMM's resource if no block is
/// live, which waits for the device, and does nothing otherwise; the next allocation makes another
/// one. RMM does not report what it cannot free, and writes its failures to its log, which is the
/// standard error by default.
///
/// # Dropping it
///
/// Frees what RMM has taken from the device, which waits for the device's work; leaks it while
/// blocks are live, because work may be using them, on a lost device and in a forked child.
pub struct RmmResource {
    streams: Arc<StreamPool>,
    rmm: Rmm,
    config: RmmConfig,
    state: LeakedInChild<Mutex<State>>,
}

/// Never locked across a call of RMM or of the driver.
#[derive(Default)]
struct State {
    /// `None` after a trim, until the next allocation.
    made: Option<Arc<RawResource>>,
    /// By address.
    live: HashMap<u64, Live>,
    /// The slot of the stream that RMM last met under a handle.
    met: HashMap<usize, usize>,
    /// `reserved` is RMM's figure, and not in here.
    usage: Usage,
}

/// A block that is live.
struct Live {
    generation: Generation,
    /// The resource that it is from.
    made: Arc<RawResource>,
}

impl RmmResource {
    /// Makes a resource of RMM on the device of this pool, which accepts the pool's streams.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](ResourceError::OutOfMemory) for what it takes from the device at once;
    /// [`Library`](ResourceError::Library) for settings that RMM refuses;
    /// [`DeviceLost`](ResourceError::DeviceLost); [`ForkedProcess`](ResourceError::ForkedProcess).
    pub fn new(rmm: &Rmm, streams: Arc<StreamPool>, config: RmmConfig) -> ResourceResult<Self> {
        // First: another thread may have held a lock when the process was forked.
        streams.device().refuse_fork()?;
        let state = LeakedInChild::default();
        let resource = Self { streams, rmm: rmm.clone(), config, state };
        resource.made()?;
        Ok(resource)
    }

    /// Returns the pool whose streams it accepts.
    #[must_use]
    pub fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    /// Returns its settings.
    #[must_use]
    pub fn config(&self) -> &RmmConfig {
        &self.config
    }

    /// Returns the library that it calls.
    #[must_use]
    pub fn rmm(&self) -> &Rmm {
        &self.rmm
    }

    fn device(&self) -> &Device {
        self.streams.device()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns RMM's resource, and makes it if it is not there.
    fn made(&self) -> ResourceResult<Arc<RawResource>> {
        if let Some(made) = &self.state().made {
            return Ok(Arc::clone(made));
        }
        let make = || RawResource::new(&self.rmm, self.device(), &self.config);
        let made = self.device().relaxed(|_| Ok(make()))?;
        let bytes = self.config.initial_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let made = made.map_err(|thrown| self.refusal("create", thrown, bytes.unwrap_or(0)))?;
        let made = Arc::new(made);
        // Another thread may have made one; the other is dropped without the lock.
        let kept = Arc::clone(self.state().made.get_or_insert_with(|| Arc::clone(&made)));
        Ok(kept)
    }

    /// Makes a call of RMM on a stream: with the context current, and without regard to captures of
    /// other streams.
    fn call<T>(
        &self,
        name: &'static str,
        stream: &StreamGuard<'_>,
        bytes: usize,
        call: impl FnOnce(*mut c_void) -> Result<T, Thrown>,
    ) -> ResourceResult<T> {
        self.meet(stream)?;
        let done = self.device().relaxed(|_| stream.with_handle(call))?;
        done.map_err(|thrown| self.refusal(name, thrown, bytes))
    }

    /// Waits for the pool's streams if RMM has met another stream under the handle of this one: to
    /// RMM they are one, and the work of the other may not be done.
    fn meet(&self, stream: &StreamGuard<'_>) -> ResourceResult<()> {
        let handle = stream.with_handle(|handle| handle as usize)?;
        let slot = stream.slot();
        let known = self.state().met.get(&handle).copied();
        if known == Some(slot) {
            return Ok(());
        }
        if known.is_some() {
            // A stream that captures is skipped: its handle is its own.
            self.streams.synchronize_all()?;
        }
        self.state().met.insert(handle, slot);
        Ok(())
    }

    /// Converts what RMM has thrown in a call for `bytes` bytes. RMM reports any failure below a
    /// pool as a shortage; the driver reports whether the device is lost.
    #[cold]
    fn refusal(&self, call: &'static str, thrown: Thrown, bytes: usize) -> ResourceError {
        let memory = self.device().memory_info().unwrap_or_default();
        if let Err(gone) = self.device().check() {
            return gone;
        }
        if !thrown.is_out_of_memory {
            return ResourceError::library(LIBRARY, call, thrown.message, self.device_ordinal());
        }
        let usage = self.usage();
        let error = ResourceError::out_of_memory(bytes, self.device_ordinal(), memory, &usage);
        let reserved = usage.reserved;
        let RmmConfig { kind, initial_bytes, maximum_bytes, .. } = self.config;
        match (kind, initial_bytes, maximum_bytes) {
            (RmmKind::Arena, Some(bytes), _) => {
                error.by_limit(Limit { name: "RmmConfig::initial_bytes", bytes, reserved })
            }
            (RmmKind::Pool | RmmKind::Binning, _, Some(limit))
                if reserved.saturating_add(bytes as u64) > limit =>
            {
                let name = "RmmConfig::maximum_bytes";
                error.by_limit(Limit { name, bytes: limit, reserved })
            }
            _ => error,
        }
    }

    /// Refuses a block that is not live here.
    fn require_live(&self, block: &DeviceBlock) -> ResourceResult<()> {
        let is_live = self.state().live.get(&block.ptr()).map(|live| live.generation)
            == Some(block.generation());
        // A layer that tracks uses passes a block on without the slot that it has given it.
        match is_live && block.id().slot() == BlockSlot::NONE {
            true => Ok(()),
            false => Err(ResourceError::foreign_block(block, self.device_ordinal())),
        }
    }

    fn release(&self, block: &DeviceBlock) -> ResourceResult<BlockState> {
        // First: another thread may have held the lock when the process was forked.
        self.device().refuse_fork()?;
        block.require_part_depth(0)?;
        self.require_live(block)?;
        if self.device().is_lost() {
            self.remove(block);
            return Ok(BlockState::Freed);
        }
        let home = block.alloc_stream();
        let entered = self.streams.enter_home(home)?;
        entered.refuse_capture()?;
        let stream = match entered {
            HomeStream::Live(stream) => stream,
            HomeStream::Retired => {
                let reclaim = self.streams.reclaim_stream()?;
                let uses = self.streams.uses();
                uses.wait_on(&reclaim, &Dependencies::on(home, uses.submitted(home)))?;
                reclaim
            }
        };
        // First: another thread may allocate the address as soon as RMM has it.
        let Some(live) = self.remove(block) else { return Ok(BlockState::Freed) };
        let made = Arc::clone(&live.made);
        let bytes = block.bytes();
        // SAFETY: allocated there with as many bytes, and taken out of the table by this call
        // alone; the stream comes after the work on the home stream; other uses are the caller's.
        let free = |stream| unsafe { made.deallocate(block.ptr(), bytes, stream) };
        let freed = self.call("deallocate", &stream, bytes, free);
        if let Err(error) = freed {
            let mut state = self.state();
            state.live.insert(block.ptr(), live);
            state.usage.live += bytes as u64;
            state.usage.total_freed -= bytes as u64;
            return Err(error);
        }
        Ok(BlockState::Freed)
    }

    /// Takes a block out of the table, and counts it as freed.
    fn remove(&self, block: &DeviceBlock) -> Option<Live> {
        let mut state = self.state();
        let live = state.live.remove(&block.ptr())?;
        state.usage.live -= block.bytes() as u64;
        state.usage.total_freed += block.bytes() as u64;
        Some(live)
    }
}

impl DeviceMemoryResource for RmmResource {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let rounded = checked_round_up(bytes, BLOCK_ALIGNMENT)?;
        let total = self.device().total_memory();
        if bytes as u64 > total {
            return Err(ResourceError::beyond_device(bytes, total));
        }
        let home = self.streams.enter(stream)?;
        home.refuse_capture()?;
        let made = self.made()?;
        let taken = self.call("allocate", &home, bytes, |stream| made.allocate(bytes, stream));
        // A capture may have begun since. RMM may then have put the wait for the last owner of the
        // memory into the graph, so that no later use of the memory would be ordered: it is leaked.
        home.refuse_capture()?;
        let ptr = taken.inspect_err(|error| home.record_refusal(bytes, tag, error))?;
        let generation = Generation::next();
        {
            let mut state = self.state();
            state.live.insert(ptr, Live { generation, made });
            state.usage.live += bytes as u64;
            state.usage.total_allocated += bytes as u64;
        }
        // SAFETY: RMM has just allocated these bytes, aligned to 256; they stay allocated until
        // `deallocate` takes the block; the generation is new.
        Ok(unsafe {
            DeviceBlock::from_parts(BlockParts {
                ptr,
                bytes,
                reserved_bytes: rounded,
                alignment: BLOCK_ALIGNMENT,
                device_ordinal: self.device_ordinal(),
                alloc_stream: home.id(),
                tag,
                generation,
                slot: BlockSlot::NONE,
                state: BlockState::Live,
                part_depth: 0,
            })
        })
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.release(&block).map_err(|error| DeallocateError::new(error, block))
    }

    /// Returns whether the block has `bytes` bytes already: RMM grows no block.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.device().refuse_fork()?;
        block.require_part_depth(0)?;
        Ok(bytes <= block.bytes())
    }

    fn is_retired(&self, _: BlockId) -> bool {
        false
    }

    fn device_ordinal(&self) -> usize {
        self.device().ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.streams.id()
    }

    /// Returns the usage; `reserved` is what RMM has taken from the device.
    fn usage(&self) -> Usage {
        if self.device().is_forked() {
            return Usage::default();
        }
        let made = self.state().made.clone();
        // Of the driver's pool it is a call that captures forbid.
        let reserved = |made: Arc<RawResource>| self.device().relaxed(|_| Ok(made.reserved().ok()));
        let reserved = made.and_then(|made| reserved(made).ok()?).unwrap_or(0);
        let mut usage = self.state().usage;
        usage.reserved = reserved.max(usage.live);
        usage
    }

    fn bytes_outstanding(&self) -> u64 {
        if self.device().is_forked() { 0 } else { self.state().usage.live }
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.device().refuse_fork().map(|()| 0)
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.device().refuse_fork().map(|()| 0)
    }

    /// Drops RMM's resource if no block is live, which waits for the device; the next allocation
    /// makes another one.
    fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        self.device().refuse_fork()?;
        let before = self.usage().reserved;
        if before <= keep_bytes || self.device().is_lost() {
            return Ok(0);
        }
        let unused = {
            let mut state = self.state();
            if state.live.is_empty() { state.made.take() } else { None }
        };
        drop(unused);
        Ok(before.saturating_sub(self.usage().reserved))
    }
}

impl Drop for RmmResource {
    fn drop(&mut self) {
        if self.device().is_forked() {
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Work may be using them: they are leaked, and what they keep.
        for (_, live) in state.live.drain() {
            mem::forget(live);
        }
    }
}

/// `RMM pool(device 0)`.
impl fmt::Display for RmmResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{LIBRARY} {}(device {})", self.config.kind, self.device_ordinal())
    }
}

impl fmt::Debug for RmmResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
