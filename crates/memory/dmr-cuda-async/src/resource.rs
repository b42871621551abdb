//! The resource: the driver's pool, the use table of the stream pool, and the accounting.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::result;
use cudarc::driver::sys::CUresult;
use dmr_core::error::Limit;
use dmr_core::process::LeakedInChild;
use dmr_core::size::{BLOCK_ALIGNMENT, checked_round_up};
use dmr_core::waits::wait_without_limit;
use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockSlot, BlockState, BlockUse, DeallocateError, DeviceBlock,
    DeviceMemoryResource, DriverAllocation, Generation, PeerAccess, ResourceError, ResourceResult,
    StreamId, StreamPoolId, Usage, UseTokens, UseTracking, VirtualMemory,
};
use dmr_recorder::hooks;
use dmr_streams::uses::{BlocksInUse, Patience, PendingFrees, UseTable};
use dmr_streams::{BlockOwner, Device, StreamGuard, StreamPool};

use crate::accounts::Accounts;
use crate::driver_pool::{DriverPool, HighWater};
use crate::release::{RetiredBlock, SHARDS};
use crate::{AsyncConfig, Diagnostics};

/// The longest time that a trim waits for frees that are queued. Without other work they take
/// microseconds.
const FREES_TIMEOUT: Duration = Duration::from_millis(1);

/// The most times that an allocation waits for frees before it is refused.
const TRIES: usize = 16;

/// One `cuMemAllocFromPoolAsync` and one `cuMemFreeAsync` per block, from a driver pool of its own,
/// with use tracking.
///
/// # When memory is freed
///
/// [`deallocate`](DeviceMemoryResource::deallocate) queues the driver's free and does not wait. The
/// free is queued on the home stream, where it comes after all work submitted there.
///
/// If other streams have used the block and the home stream has not waited for them, the block is
/// *retired* until they are known to be done: later frees poll them, once for many blocks.
/// Then it is freed on the home stream, where the next allocation can have it at once. Large
/// blocks, and others that have waited too long, are freed on a library stream that no user's work
/// is on, which waits for their uses: no user's stream waits because of a free. Too
/// long is when more than 60 MiB, or 128 blocks, of one home stream are pending; when an allocation
/// finds no memory; at a reap or a trim; and when the resource is dropped.
///
/// A block that is deallocated while a window is open on it is retired, too, and freed when the
/// window closes. A free that then fails leaves it retired, and every reap tries again. (A window
/// that is closed through another resource of the same stream pool is found by the next reap.)
///
/// # When memory is short
///
/// An allocation for which the driver has no memory waits for the frees that are queued, on their
/// home streams and on the reclaim stream, however long the work before them takes, and is refused
/// only when none is left.
///
/// # When the device is lost
///
/// Allocations fail, and blocks are deallocated without a call to the driver, whose memory is gone
/// with the context. No memory is allocated again.
///
/// # Dropping it
///
/// Does not wait. Retired blocks are freed unless a window is still open; live blocks are leaked:
/// work may be using them.
///
/// Make it once and share it. A process in which several threads each made, used and dropped some
/// was seen to stand still inside the driver (580.159.04), which seems to lose one of its locks.
pub struct AsyncCudaResource {
    pub(crate) pool: DriverPool,
    pub(crate) streams: Arc<StreamPool>,
    pub(crate) owner: BlockOwner,
    pub(crate) accounts: LeakedInChild<Accounts>,
    pub(crate) in_use: LeakedInChild<BlocksInUse<RetiredBlock>>,
    pub(crate) pending: LeakedInChild<PendingFrees<RetiredBlock>>,
}

impl AsyncCudaResource {
    /// A resource on the device of this pool, which accepts the pool's streams.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver) if the driver makes no pool, or not as configured.
    pub fn new(streams: Arc<StreamPool>, config: AsyncConfig) -> ResourceResult<Self> {
        let pool = DriverPool::new(streams.device(), &config)?;
        let owner = streams.register();
        let accounts = LeakedInChild::new(Accounts::new());
        let in_use = LeakedInChild::new(BlocksInUse::new(&owner));
        let pending = LeakedInChild::new(PendingFrees::new(SHARDS, RetiredBlock::bytes));
        Ok(Self { pool, streams, owner, accounts, in_use, pending })
    }

    /// The pool whose streams it accepts.
    #[must_use]
    pub fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    /// Bytes that the driver's pool has taken from the device.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver).
    pub fn reserved_bytes(&self) -> ResourceResult<HighWater> {
        self.pool.reserved()
    }

    /// Returns the allocated bytes of the driver's pool, as the driver counts them. A free that was
    /// queued does not count as used any more, whether or not it has executed.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver).
    pub fn used_bytes(&self) -> ResourceResult<HighWater> {
        self.pool.used()
    }

    /// Makes both high-water marks what is current.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver).
    pub fn reset_high_water_marks(&self) -> ResourceResult<()> {
        self.pool.reset_high_water_marks()
    }

    /// Bytes asked for in retired blocks whose home is this stream. The sum over all streams is
    /// `usage().retired`.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse).
    pub fn retired_bytes(&self, home: StreamId) -> ResourceResult<u64> {
        self.device().refuse_fork()?;
        Ok(self.accounts.on(self.streams.resolve_id(home)?).retired())
    }

    /// Returns what the resource holds and waits for. Makes no driver call.
    #[must_use]
    pub fn diagnostics(&self) -> Diagnostics {
        if self.device().is_forked() {
            return Diagnostics::default();
        }
        let totals = self.accounts.all();
        Diagnostics {
            live_bytes: totals.live(),
            pending_free_bytes: totals.retired(),
            pending_use_event_count: self.uses().recorded_uses(),
        }
    }

    pub(crate) fn device(&self) -> &Device {
        self.streams.device()
    }

    pub(crate) fn uses(&self) -> UseTable<'_> {
        self.streams.uses()
    }

    /// Allocates from the driver. If it has no memory, frees what is retired; then waits for the
    /// frees that are queued and trims the driver's pool, as long as there are any; tries again
    /// after each. Trims the pool again before it refuses.
    fn take(&self, bytes: usize, stream: &StreamGuard<'_>) -> ResourceResult<u64> {
        let allocate = || self.pool.allocate(bytes, stream);
        const FULL: result::DriverError = result::DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let mut allocated = allocate();
        if allocated == Err(FULL) && !self.holds_none() {
            // Blocks that cannot be freed stay retired.
            let _ = self.reap(Patience::Wait);
            allocated = allocate();
        }
        for attempt in 0..TRIES {
            // Other threads may have freed blocks, and allocated what the last attempt had found.
            let has_waited = allocated == Err(FULL) && self.wait_for_frees();
            if allocated != Err(FULL) || attempt > 0 && !has_waited {
                break;
            }
            // Each free piece may be too small, and a larger one needs the device's memory.
            allocated = self.pool.trim_to(0).map_or(allocated, |()| allocate());
        }
        allocated.map_err(|error| match error {
            FULL => {
                // The driver's pool keeps what a refused call has taken from the device. If this
                // fails, the next trim returns it.
                let _ = self.pool.trim_to(0);
                self.out_of_memory(bytes)
            }
            _ => self.device().driver_error("cuMemAllocFromPoolAsync", error),
        })
    }

    /// Frees memory that was just allocated, after `refusal` of its stream: if the stream captures
    /// a graph, the memory belongs to that graph. Returns the refusal, or `Ok` if the memory was
    /// not freed and can be used.
    fn free_unused(
        &self,
        ptr: u64,
        stream: &StreamGuard<'_>,
        refusal: ResourceError,
    ) -> ResourceResult<()> {
        const INVALID_VALUE: i32 = CUresult::CUDA_ERROR_INVALID_VALUE as i32;
        // SAFETY: just allocated on this stream, and used by no work.
        match (unsafe { self.pool.free(ptr, stream) }, &refusal) {
            // The memory is older than the capture: the driver frees only memory of the graph in
            // it.
            (Err(ResourceError::Driver { code: INVALID_VALUE, .. }), _)
            // No capture is known of, and the memory would be lost.
            | (Err(_), ResourceError::Driver { .. }) => Ok(()),
            _ => Err(refusal),
        }
    }

    /// Waits for the frees that are queued: only then does the driver's pool have their memory.
    /// Returns whether it has waited for any.
    fn wait_for_frees(&self) -> bool {
        // Blocks that cannot be freed stay retired.
        let _ = self.reap(Patience::Wait);
        let queued = self.accounts.queued_frees();
        let is_home = |slot| queued.iter().any(|frees| frees.slot == slot);
        // A stream that captures is skipped.
        let has_waited = !queued.is_empty() && self.streams.synchronize_slots(is_home) == Ok(true);
        if has_waited {
            self.accounts.have_executed(&queued);
        }
        has_waited
    }

    #[cold]
    fn out_of_memory(&self, bytes: usize) -> ResourceError {
        let memory = self.device().memory_info().unwrap_or_default();
        let usage = self.usage();
        // One of those calls may have found it lost.
        if let Err(gone) = self.device().check() {
            return gone;
        }
        let error = ResourceError::out_of_memory(bytes, self.device_ordinal(), memory, &usage);
        let requested = bytes as u64;
        let reserved = usage.reserved;
        let (free, _) = memory;
        match self.pool.max_bytes.map(|bytes| bytes as u64) {
            // The driver does not say which it was; where the device has room, it was the limit.
            Some(bytes) if reserved.saturating_add(requested) > bytes || requested <= free => {
                error.by_limit(Limit { name: "AsyncConfig::max_bytes", bytes, reserved })
            }
            _ => error,
        }
    }

    /// Returns whether no block is retired.
    pub(crate) fn holds_none(&self) -> bool {
        self.in_use.is_empty() && self.pending.is_empty()
    }

    /// Frees the blocks that were released while a window was open. For every call that has closed
    /// windows; a preparation that fails closes those that it has opened.
    #[inline]
    fn windows_have_closed(&self) {
        // In a forked child another thread may have held a lock. On a lost device a reap comes.
        if self.in_use.any_closed() && self.device().check().is_ok() {
            self.free_closed(Patience::Poll);
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl DeviceMemoryResource for AsyncCudaResource {
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
        let alloc_stream = home.id();
        home.refuse_capture()?;
        // A capture may have begun since.
        let taken = self.take(bytes, &home);
        let taken = taken.inspect_err(|error| home.record_refusal(bytes, tag, error));
        let ptr = taken.or_else(|error| home.refuse_capture().and(Err(error)))?;
        home.refuse_capture().or_else(|refusal| self.free_unused(ptr, &home, refusal))?;
        let generation = Generation::next();
        let kept = self.accounts.allocated(alloc_stream, bytes as u64);
        let reserved = kept.map_or_else(|| self.uses().reserve(&self.owner, 0, alloc_stream), Ok);
        let slot = match reserved {
            // It is of the use table of these streams.
            Ok(slot) => home.occupy(slot, generation).unwrap_or(BlockSlot::NONE),
            Err(error) => {
                self.accounts.not_allocated(alloc_stream, bytes as u64);
                // SAFETY: just allocated on this stream, and used by no work.
                let _: ResourceResult<()> = unsafe { self.pool.free(ptr, &home) };
                return Err(error);
            }
        };
        // SAFETY: the driver has just allocated these bytes, aligned to 256; they stay allocated
        // until `deallocate` frees the block; the generation is new.
        let block = unsafe {
            DeviceBlock::from_parts(BlockParts {
                ptr,
                bytes,
                reserved_bytes: rounded,
                alignment: BLOCK_ALIGNMENT,
                device_ordinal: self.device_ordinal(),
                alloc_stream,
                tag,
                generation,
                slot,
                state: BlockState::Live,
                part_depth: 0,
            })
        };
        self.device().report_block(&block);
        hooks::allocated(|| (&block).into());
        Ok(block)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.release(&block).map_err(|error| DeallocateError::new(error, block))
    }

    /// The driver goes on counting the memory as its pool's until it is freed.
    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        let left = block.require_part_depth(0);
        let left = left.and_then(|()| self.uses().release_after_uses(&self.owner, &block));
        match left {
            Ok((slot, _)) => {
                let home = block.alloc_stream();
                self.accounts.released_and_freed(home, block.bytes() as u64, slot);
                self.device().report_given_away(block.id());
                // SAFETY: the block is from the driver's pool, was released here, and is not freed.
                // Its home stream comes after its uses.
                Ok(unsafe { DriverAllocation::from_block(block) })
            }
            Err(error) => Err(DeallocateError::new(error, block)),
        }
    }

    /// Grows nothing: the driver does not.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.device().refuse_fork()?;
        block.require_part_depth(0)?;
        Ok(bytes <= block.bytes())
    }

    fn is_retired(&self, block: BlockId) -> bool {
        self.uses().is_retired(block)
    }

    fn device_ordinal(&self) -> usize {
        self.device().ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.streams.id()
    }

    /// Makes no driver call.
    fn bytes_outstanding(&self) -> u64 {
        if self.device().is_forked() {
            return 0;
        }
        let totals = self.accounts.all();
        totals.live() + totals.retired()
    }

    /// Returns the usage; `reserved` is the driver's figure, or the outstanding bytes if that
    /// cannot be read.
    fn usage(&self) -> Usage {
        if self.device().is_forked() {
            return Usage::default();
        }
        let totals = self.accounts.all();
        let mut usage = Usage::default();
        usage.live = totals.live();
        usage.retired = totals.retired();
        usage.total_allocated = totals.allocated;
        usage.total_freed = totals.freed;
        usage.reserved = self.pool.reserved_now().unwrap_or(usage.outstanding());
        usage
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.device().refuse_fork()?;
        self.reap(Patience::Poll)
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.device().refuse_fork()?;
        self.reap(Patience::Wait)
    }

    /// Memory whose free has not executed within a millisecond stays.
    fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        let reaped = self.try_reap();
        if self.device().check().is_err() {
            return reaped.map(|_| 0);
        }
        let before = self.pool.reserved_now()?;
        if before <= keep_bytes {
            return reaped.map(|_| 0);
        }
        // Memory whose free is not done by then, or cannot be queried, stays in the driver's pool.
        let _ = self.streams.synchronize_until(Instant::now() + FREES_TIMEOUT);
        self.pool.trim_to(keep_bytes)?;
        let returned = before.saturating_sub(self.pool.reserved_now()?);
        reaped.map(|_| returned)
    }

    /// Sets the access of the driver's pool, which needs no peer access of the contexts.
    fn allow_access(&self, device_ordinal: usize) -> ResourceResult<PeerAccess> {
        self.pool.allow_access(device_ordinal)?;
        Ok(PeerAccess::Granted)
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        Some(self)
    }

    /// `None`: the driver's pool maps its pages itself.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }
}

impl UseTracking for AsyncCudaResource {
    fn prepare(&self, uses: &[BlockUse], tokens: &mut UseTokens) -> ResourceResult<()> {
        self.uses().prepare_in(uses, tokens, || self.windows_have_closed())
    }

    fn finish(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        let outcome = self.uses().finish_in(tokens);
        self.windows_have_closed();
        outcome
    }

    fn cancel(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        let outcome = self.uses().cancel_in(tokens);
        self.windows_have_closed();
        outcome
    }
}

impl Drop for AsyncCudaResource {
    fn drop(&mut self) {
        if self.device().bind().is_ok() {
            let _ = wait_without_limit(|| self.reap(Patience::Wait));
            for slot in self.accounts.take_slots() {
                self.uses().vacate(slot);
            }
        }
    }
}

/// `Async(device 0)`.
impl fmt::Display for AsyncCudaResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Async(device {})", self.device_ordinal())
    }
}

impl fmt::Debug for AsyncCudaResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
