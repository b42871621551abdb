//! The resource: the driver's pool, the use table of the stream pool, and the accounting.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{CUresult, CUstreamCaptureStatus};
use cudarc::driver::{CudaStream, result};
use dmr_core::size::{BLOCK_ALIGNMENT, checked_round_up};
use dmr_core::{
    Access, AllocTag, BlockId, BlockParts, BlockSlot, BlockState, BlockUse, DeallocateError,
    DeviceBlock, DeviceMemoryResource, Generation, ResourceError, ResourceResult, StreamId,
    StreamPoolId, Usage, UseToken, UseTokens,
};
use dmr_streams::uses::{Departure, FreeOrder, HomeOrder, LastUse, UseTable};
use dmr_streams::{Device, Owner, StreamPool};

use crate::accounts::Accounts;
use crate::deferred::{Deferred, Late};
use crate::driver_pool::{DriverPool, HighWater};
use crate::retired::{Reaped, Retired, RetiredBlocks};
use crate::{AsyncConfig, Diagnostics};

/// One `cuMemAllocFromPoolAsync` and one `cuMemFreeAsync` per block, from a driver pool of its own,
/// with use tracking.
///
/// # When memory is freed
///
/// [`deallocate`](DeviceMemoryResource::deallocate) hands the block to the driver and waits for
/// nothing. The driver's free is queued on the home stream, where it comes after all work
/// submitted there.
///
/// If other streams have used the block and the home stream has not waited for them, the block is
/// *retired* until the driver says that they are done: later frees ask it, once for many blocks.
/// Then it is freed on the home stream, where the next allocation can have it at once. Large
/// blocks, and others that have waited too long, are freed on a stream of the pool's own that
/// nobody works on, which waits for their users: no user's stream waits because of a free. Too
/// long is when more than 64 MiB are kept, or 128 blocks of one home stream; when an allocation
/// finds no memory; at a reap or a trim; and when the resource is dropped.
///
/// A block given back while a window is open on it is retired, too: the driver gets it when the
/// window closes. A free that then fails leaves it retired, and every reap tries again. (A window
/// that is closed through another resource of the same stream pool is noticed by the next reap.)
///
/// # When the device is lost
///
/// Allocations fail, and blocks are taken back without a call to the driver, whose memory is gone
/// with the context. Nothing is handed out again.
///
/// # Dropping it
///
/// Waits for nothing. What is retired goes to the driver unless its window is still open; blocks
/// still handed out are leaked: something may be using them.
pub struct AsyncCudaResource {
    pool: DriverPool,
    streams: Arc<StreamPool>,
    owner: Owner,
    accounts: Accounts,
    deferred: Deferred,
    retired: RetiredBlocks,
}

impl AsyncCudaResource {
    /// A resource on the device of this pool, which accepts the pool's streams.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver) if the driver makes no pool, or not as configured.
    pub fn new(streams: Arc<StreamPool>, config: AsyncConfig) -> ResourceResult<Self> {
        let pool = DriverPool::new(streams.device(), &config)?;
        let owner = Owner::new();
        let (accounts, retired) = (Accounts::new(), RetiredBlocks::default());
        let deferred = Deferred::new();
        Ok(Self { pool, streams, owner, accounts, deferred, retired })
    }

    /// The pool whose streams it accepts.
    #[must_use]
    pub fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    /// Gives free memory back to the device, as long as `bytes` bytes stay reserved. Memory whose
    /// free has not executed yet stays.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver).
    pub fn trim_to(&self, bytes: usize) -> ResourceResult<()> {
        if !self.deferred.is_empty() {
            self.try_reap()?;
        }
        self.pool.trim_to(bytes)
    }

    /// Bytes that the driver's pool has taken from the device.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver).
    pub fn reserved_bytes(&self) -> ResourceResult<HighWater> {
        self.pool.reserved()
    }

    /// Bytes of the driver's pool that are handed out, as the driver counts them. A free that was
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
        Ok(self.accounts.on(self.streams.resolve_id(home)?).retired())
    }

    /// What it holds and what it waits for. Makes no driver call.
    #[must_use]
    pub fn diagnostics(&self) -> Diagnostics {
        let totals = self.accounts.all();
        Diagnostics {
            live_bytes: totals.live(),
            pending_free_bytes: totals.retired(),
            pending_use_event_count: self.uses().recorded_uses(),
        }
    }

    fn device(&self) -> &Device {
        self.streams.device()
    }

    fn uses(&self) -> UseTable<'_> {
        self.streams.uses()
    }

    /// The stream in the slot of a home stream, whose lease may have been returned. Refused if its
    /// owner, who had lent it to the pool, has taken it back.
    fn home_stream(&self, home: StreamId) -> ResourceResult<&Arc<CudaStream>> {
        self.streams.home_stream(home)
    }

    /// Memory from the driver. If it has none, what is retired is freed and it is asked again.
    fn take(&self, bytes: usize, stream: &CudaStream) -> ResourceResult<u64> {
        // SAFETY: the stream is alive for as long as it is borrowed.
        let ask = || unsafe { self.pool.allocate(bytes, stream.cu_stream()) };
        let is_full = |error: &result::DriverError| error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let answer = match ask() {
            Err(error) if is_full(&error) && !self.holds_none() => {
                // What it cannot free stays retired.
                self.deferred.give_up_all(true, &self.retired);
                self.retired.sweep_alone(|| drop(self.sweep()));
                ask()
            }
            answer => answer,
        };
        answer.map_err(|error| {
            if !is_full(&error) {
                return self.device().driver_error("cuMemAllocFromPoolAsync", error);
            }
            let memory = self.device().memory_info().unwrap_or_default();
            ResourceError::out_of_memory(bytes, self.device_ordinal(), memory, &self.usage())
        })
    }

    fn refuse_capture(&self, id: StreamId, stream: &CudaStream) -> ResourceResult<()> {
        // SAFETY: the stream is alive for as long as it is borrowed.
        let status = unsafe { result::stream::is_capturing(stream.cu_stream()) }
            .map_err(|error| self.device().driver_error("cuStreamIsCapturing", error))?;
        if status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            Ok(())
        } else {
            Err(ResourceError::stream_capturing(id))
        }
    }

    /// Takes a block back from its owner. On an error it is as if it had not been called.
    fn give_back(&self, block: &DeviceBlock) -> ResourceResult<BlockState> {
        let (id, bytes) = (block.id(), block.bytes() as u64);
        let bound = self.device().bind();
        // First: another thread may have held a lock when the process was forked.
        if let Err(forked @ ResourceError::ForkedProcess { .. }) = bound {
            return Err(forked);
        }
        match self.uses().give_back(id, self.owner)? {
            Departure::Home(leaving) => {
                match bound.and_then(|()| self.free_at_home(id)) {
                    // Lost, its memory is gone with the context.
                    Err(error) if !self.device().is_lost() => {
                        leaving.stay();
                        Err(error)
                    }
                    _ => {
                        leaving.gone();
                        self.accounts.handed_through(id.alloc_stream(), bytes);
                        Ok(BlockState::Freed)
                    }
                }
            }
            Departure::Retired { order, .. } => {
                let handed = bound.and_then(|()| self.put_off_or_free(id, bytes, order));
                self.keep_retired(id, bytes, handed)
            }
            Departure::Foreign => Err(ResourceError::foreign_block(block, self.device_ordinal())),
        }
    }

    /// Queues the driver's free of a block whose order holds at home. The context is current.
    fn free_at_home(&self, id: BlockId) -> ResourceResult<()> {
        let home = self.home_stream(id.alloc_stream())?;
        // SAFETY: the block has left the table or is retired, so nothing can be submitted for it
        // any more; all that was comes before this on its home stream, or is done.
        let freed = unsafe { self.pool.free(id.ptr(), home.cu_stream()) };
        // On a capturing stream the driver refuses memory that is not the graph's, and the capture
        // lives: so that needs no asking before.
        freed.or_else(|error| self.refuse_capture(id.alloc_stream(), home).and(Err(error)))
    }

    /// What becomes of a block that has not left the table. The context is current.
    fn put_off_or_free(&self, id: BlockId, bytes: u64, order: HomeOrder) -> ResourceResult<Handed> {
        if let Ok(home) = self.home_stream(id.alloc_stream()) {
            self.refuse_capture(id.alloc_stream(), home)?;
        }
        match order {
            HomeOrder::InUse => Ok(Handed::InUse),
            HomeOrder::Others(last) if Deferred::takes(bytes) => Ok(Handed::Late(last)),
            _ => self.free_retired(id),
        }
    }

    /// Accounts for a retired block by what has become of it. On an error it is not given back.
    fn keep_retired(
        &self,
        id: BlockId,
        bytes: u64,
        handed: ResourceResult<Handed>,
    ) -> ResourceResult<BlockState> {
        let home = id.alloc_stream();
        let handed = match handed {
            // Its memory is gone with the context.
            Err(_) if self.device().is_lost() => Handed::ToDriver,
            Err(error) => {
                self.uses().unretire(id);
                return Err(error);
            }
            Ok(handed) => handed,
        };
        match handed {
            Handed::ToDriver => {
                self.uses().remove(id);
                self.accounts.handed_through(home, bytes);
                return Ok(BlockState::Freed);
            }
            Handed::Late(last) => {
                self.accounts.retired(home, bytes);
                self.put_off(Late { block: Retired { id, bytes }, last });
            }
            Handed::InUse => {
                self.accounts.retired(home, bytes);
                self.retired.push(Retired { id, bytes });
                // The window may have closed meanwhile.
                self.sweep_if_any();
            }
        }
        Ok(BlockState::Retired)
    }

    /// Queues the driver's free of a retired block where it comes after all that it must.
    fn hand_over(&self, id: BlockId) -> ResourceResult<Handed> {
        let freed = self.device().bind().and_then(|()| {
            if let Ok(home) = self.home_stream(id.alloc_stream()) {
                self.refuse_capture(id.alloc_stream(), home)?;
            }
            self.free_retired(id)
        });
        match freed {
            // Its memory is gone with the context.
            Err(_) if self.device().is_lost() => Ok(Handed::ToDriver),
            answer => answer,
        }
    }

    /// The same where the context is current and the home stream does not capture.
    fn free_retired(&self, id: BlockId) -> ResourceResult<Handed> {
        match self.uses().free_order(id)? {
            FreeOrder::InUse => return Ok(Handed::InUse),
            FreeOrder::Home => {
                let home = self.home_stream(id.alloc_stream())?;
                // SAFETY: the block is retired, so nothing can be submitted for it any more; all
                // that was comes before this on its home stream.
                unsafe { self.pool.free(id.ptr(), home.cu_stream()) }?;
            }
            FreeOrder::After(dependencies) => {
                let reclaim = self.streams.reclaim_stream()?;
                dependencies.make_wait(reclaim)?;
                // SAFETY: as above; the reclaim stream waits for all that was submitted.
                unsafe { self.pool.free(id.ptr(), reclaim.cu_stream()) }?;
            }
        }
        Ok(Handed::ToDriver)
    }

    /// Keeps a block until other streams are done with it, and frees those of its home stream with
    /// which they are; asks the driver for that now and then.
    fn put_off(&self, late: Late) {
        let passed = |late: &Late| self.uses().has_passed(late.block.id.alloc_stream(), late.last);
        let order = |late: &Late| self.uses().home_order(late.block.id);
        let ready = |late: &Late| {
            passed(late) && (late.last.is_only() || order(late) == Ok(HomeOrder::Holds))
        };
        let ask = |late: Late| {
            if matches!(order(&late), Ok(HomeOrder::Others(_))) {
                // No answer: it is asked again.
                let _ = self.uses().poll_free(late.block.id);
            }
        };
        let free = |block: Retired| match self.free_at_home(block.id) {
            // The next reap says why.
            Err(_) if !self.device().is_lost() => self.retired.push(block),
            _ => self.forget(block.id, block.bytes),
        };
        if self.deferred.add(late, ask, ready, free, &self.retired) {
            self.sweep_if_any();
        }
    }

    /// The driver has a block that was retired: its slot and its bytes are free.
    fn forget(&self, id: BlockId, bytes: u64) {
        self.uses().remove(id);
        self.accounts.freed_later(id.alloc_stream(), bytes);
    }

    /// Frees what is retired and whose windows are closed; answers the bytes, and the first error.
    fn sweep(&self) -> (u64, ResourceResult<()>) {
        let (mut freed, mut outcome) = (0, Ok(()));
        self.retired.retain(|&Retired { id, bytes }| {
            if self.uses().has_open_window(id) && !self.device().is_lost() {
                return true;
            }
            match self.hand_over(id) {
                Ok(Handed::ToDriver) => {
                    self.forget(id, bytes);
                    freed += bytes;
                    false
                }
                Ok(_) => true,
                Err(error) => {
                    if outcome.is_ok() {
                        outcome = Err(error);
                    }
                    true
                }
            }
        });
        (freed, outcome)
    }

    fn holds_none(&self) -> bool {
        self.retired.is_empty() && self.deferred.is_empty()
    }

    fn sweep_if_any(&self) {
        if !self.retired.is_empty() {
            // What cannot be freed stays retired, for the next reap to say so.
            self.retired.stir(|| drop(self.sweep()));
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
        let located = self.streams.locate(stream)?;
        let (alloc_stream, home) = (located.id(), located.stream());
        self.device().bind()?;
        self.refuse_capture(alloc_stream, home)?;
        let ptr = self.take(bytes, home)?;
        let generation = Generation::next();
        let (uses, owner) = (self.uses(), self.owner);
        let slot = match uses.insert_owned(generation, located, owner, BlockSlot::NONE) {
            Ok(slot) => slot,
            Err(error) => {
                // SAFETY: just allocated on this stream, and seen by nobody.
                let _: ResourceResult<()> = unsafe { self.pool.free(ptr, home.cu_stream()) };
                return Err(error);
            }
        };
        self.accounts.allocated(alloc_stream, bytes as u64);
        // SAFETY: the driver has just given these bytes, aligned to 256; they stay allocated until
        // `deallocate` takes the block back; the generation is new.
        Ok(unsafe {
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
            })
        })
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.give_back(&block).map_err(|error| DeallocateError::new(error, block))
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
        let totals = self.accounts.all();
        totals.live() + totals.retired()
    }

    /// `reserved` is what the driver says; where it cannot be asked, what is outstanding.
    fn usage(&self) -> Usage {
        let totals = self.accounts.all();
        let mut usage = Usage::default();
        (usage.live, usage.retired) = (totals.live(), totals.retired());
        (usage.total_allocated, usage.total_freed) = (totals.allocated, totals.freed);
        usage.reserved = self.pool.reserved_now().unwrap_or(usage.outstanding());
        usage
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.device_for_reaping()?;
        if self.holds_none() {
            return Ok(0);
        }
        self.deferred.give_up_all(false, &self.retired);
        let mut reaped = Reaped::default();
        self.retired.stir(|| reaped.add(self.sweep()));
        reaped.answer()
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.device_for_reaping()?;
        self.deferred.give_up_all(true, &self.retired);
        let mut reaped = Reaped::default();
        self.retired.sweep_alone(|| reaped.add(self.sweep()));
        reaped.answer()
    }

    fn supports_block_use_tracking(&self) -> bool {
        true
    }

    fn record_block_use(&self, block: &DeviceBlock, stream: StreamId) -> ResourceResult<()> {
        self.device().check()?;
        self.uses().record(block.id(), stream)
    }

    fn prepare_block_use(
        &self,
        block: BlockId,
        stream: StreamId,
        access: Access,
    ) -> ResourceResult<UseToken> {
        let tokens = self.prepare_uses(&[BlockUse::new(block, access)], stream)?;
        let not_one = ResourceError::use_after_free(block.generation());
        tokens.into_iter().next().ok_or(not_one)
    }

    fn finish_block_use(&self, token: UseToken) -> ResourceResult<()> {
        let mut tokens = UseTokens::new(token.stream());
        tokens.push(token);
        self.finish_uses(tokens)
    }

    fn prepare_uses(&self, uses: &[BlockUse], stream: StreamId) -> ResourceResult<UseTokens> {
        self.device().check()?;
        self.uses().prepare(uses, stream)
    }

    fn finish_uses(&self, tokens: UseTokens) -> ResourceResult<()> {
        let outcome = match self.device().check() {
            Ok(()) => self.uses().finish(tokens),
            Err(_) if tokens.is_empty() => Ok(()),
            Err(gone @ ResourceError::ForkedProcess { .. }) => return Err(gone),
            // The work is gone with the context: nothing has to be ordered after it.
            Err(gone) => self.uses().cancel(tokens).and(Err(gone)),
        };
        self.sweep_if_any();
        outcome
    }

    fn cancel_uses(&self, tokens: UseTokens) -> ResourceResult<()> {
        let outcome = self.uses().cancel(tokens);
        self.sweep_if_any();
        outcome
    }
}

impl AsyncCudaResource {
    /// Reaping on a lost device still settles the accounts; in a forked child it is refused.
    fn device_for_reaping(&self) -> ResourceResult<()> {
        match self.device().is_forked() {
            true => Err(ResourceError::forked_process(self.device_ordinal())),
            false => Ok(()),
        }
    }
}

/// What became of a block that was given back.
enum Handed {
    ToDriver,
    InUse,
    /// Other streams may not be done with it.
    Late(LastUse),
}

impl Drop for AsyncCudaResource {
    fn drop(&mut self) {
        if self.device().bind().is_ok() {
            self.deferred.give_up_all(true, &self.retired);
            let _ = self.sweep();
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
