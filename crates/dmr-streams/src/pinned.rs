//! Page-locked host memory, which is freed when the streams of its pool are done with it.

use std::fmt;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::{Arc, Mutex};

use cudarc::driver::{result, sys};
use dmr_core::process::PerProcess;
use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::sync::lock;
use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockState, DeviceBlock, Generation, ResourceError,
    ResourceResult, StreamId,
};
use smallvec::SmallVec;

use crate::progress::Event;
use crate::uses::{BlocksInUse, Dependencies, Patience, Pending, PendingFrees, Released};
use crate::{BlockOwner, Device, HomeStream, StreamPool};

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context of the process.
const PORTABLE: u32 = 1;

/// Page-locked host memory in the use table of a [`StreamPool`], which it keeps alive.
///
/// Dropping it *retires* it, and makes no driver call: the pool frees the memory once its uses are done. See
/// [`StreamPool::try_reap_pinned`], [`StreamPool::reap_pinned`] and [`reap_orphaned_pinned`].
pub struct PinnedMemory {
    block: DeviceBlock,
    start: NonNull<u8>,
    streams: Arc<StreamPool>,
}

// SAFETY: it owns its bytes, to which it gives no access; nothing in it belongs to a thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Returns the block of this memory in the use table. The device accesses the memory at the host's
    /// address.
    pub fn block(&self) -> &DeviceBlock {
        &self.block
    }

    /// Waits until all uses of the memory are done, and all work submitted to its home stream. Returns
    /// `false`, and does not wait, if a window is open.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver), which may come from work submitted earlier;
    /// [`StreamCapturing`](ResourceError::StreamCapturing).
    pub fn synchronize(&mut self) -> ResourceResult<bool> {
        let uses = self.streams.uses();
        let Some(after) = uses.uses_of(self.block.id())? else { return Ok(false) };
        uses.synchronize(&after)?;
        Ok(true)
    }

    /// Returns the address of the first byte, which is on a page boundary. Valid until this is
    /// dropped.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let (streams, id) = (&self.streams, self.block.id());
        // Another thread may have held a lock when the process was forked.
        if streams.device().is_forked() {
            return;
        }
        let memory = HostMemory { id, bytes: self.block.bytes() };
        let mut after = Dependencies::default();
        match streams.uses().release(streams.pinned_owner(), id, &mut after) {
            Released::Free { slot, .. } => {
                streams.uses().vacate(slot);
                streams.pend_pinned(memory, after);
            }
            Released::InUse { .. } => {
                streams.pinned().in_use.insert(id, memory);
                streams.settle_pinned(Patience::Poll);
            }
            // It is in the table until here.
            Released::Foreign | Released::Stale => {}
        }
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PinnedMemory").field(&self.block).finish()
    }
}

impl StreamPool {
    /// Allocates zeroed page-locked host memory, in the use table as if `home` had written it.
    /// First frees what it can of the pinned memory that was dropped.
    ///
    /// # Errors
    ///
    /// [`InvalidSize`](ResourceError::InvalidSize) for 0 bytes;
    /// [`StreamMisuse`](ResourceError::StreamMisuse);
    /// [`StreamCapturing`](ResourceError::StreamCapturing); driver errors, among them that the host has no
    /// more memory to lock.
    pub fn allocate_pinned(
        self: &Arc<Self>,
        bytes: usize,
        home: StreamId,
    ) -> ResourceResult<PinnedMemory> {
        let (device, home) = (self.device(), self.enter(home)?);
        if bytes == 0 {
            return Err(ResourceError::zero_size());
        }
        home.refuse_capture()?;
        // Memory that cannot be freed stays retired; this allocation does not fail for it.
        let _ = ORPHANS.get().reap(Patience::Poll);
        let _ = self.try_reap_pinned();
        // SAFETY: the memory is written below, before it is read.
        let allocate = || unsafe { result::malloc_host(bytes, PORTABLE) };
        let failed = |error| device.driver_error("cuMemHostAlloc", error);
        let start = device.relaxed(|_| allocate().map_err(failed))?.cast::<u8>();
        let ptr = start.expose_provenance() as u64;
        let generation = Generation::next();
        let slot = match self.uses().insert(self.pinned_owner(), generation, &home, 0) {
            Ok(slot) => slot,
            Err(error) => {
                // Returns that error, which says more than one of the free.
                let _ = free_host(device, ptr);
                return Err(error);
            }
        };
        // SAFETY: the driver has allocated these bytes, and returns no null pointer for a size above 0.
        let start = unsafe {
            start.write_bytes(0, bytes);
            NonNull::new_unchecked(start)
        };
        // SAFETY: the driver has just allocated these bytes, on a page boundary; the device accesses them
        // at the same address. They stay until the use table has no use of them. No resource gets the
        // block. The generation is new.
        let block = unsafe {
            DeviceBlock::from_parts(BlockParts {
                ptr,
                bytes,
                reserved_bytes: bytes,
                alignment: BLOCK_ALIGNMENT,
                device_ordinal: device.ordinal(),
                alloc_stream: home.id(),
                tag: AllocTag::new("pinned"),
                generation,
                slot,
                state: BlockState::Live,
                part_depth: 0,
            })
        };
        Ok(PinnedMemory { block, start, streams: Arc::clone(self) })
    }

    /// Frees the pinned memory that was dropped and whose uses are done; returns its bytes. Polls
    /// the uses and does not wait for them; does nothing while another thread reaps.
    ///
    /// Memory counts as done when an event is done that was recorded behind its last use, and behind what
    /// had been submitted to its home stream when it was dropped: a drop records one, except on a default stream of
    /// CUDA. If there is none, a poll records one, and a later poll finds it done. On a lost device nothing can be freed,
    /// which is no error.
    ///
    /// # Errors
    ///
    /// The first error; [`StreamCapturing`](ResourceError::StreamCapturing) for memory whose home
    /// stream captures a graph. What could not be freed is still retired: call again.
    pub fn try_reap_pinned(&self) -> ResourceResult<u64> {
        self.reap_retired(Patience::Poll)
    }

    /// Waits for the pinned memory that was dropped, unless a launch that uses it is prepared and
    /// not finished, and frees it; returns its bytes.
    ///
    /// # Errors
    ///
    /// As [`try_reap_pinned`](Self::try_reap_pinned).
    pub fn reap_pinned(&self) -> ResourceResult<u64> {
        self.reap_retired(Patience::Wait)
    }

    fn reap_retired(&self, patience: Patience) -> ResourceResult<u64> {
        // First: another thread may have held a lock when the process was forked.
        self.device().refuse_fork()?;
        // On a lost device no memory is freed before the process ends.
        if self.device().is_lost() {
            return Ok(0);
        }
        self.settle_pinned(patience);
        let mut freed = 0;
        let outcome = self.pinned().pending.reap(patience, |Pending { value, after }| {
            match patience {
                Patience::Wait => self.uses().synchronize(after)?,
                Patience::Poll if !self.uses().poll(after)? => return Ok(false),
                Patience::Poll => {}
            }
            free_host(self.device(), value.id.ptr())?;
            freed += value.bytes as u64;
            Ok(true)
        });
        outcome.map(|()| freed)
    }

    /// Makes the pinned memory pending whose last window has closed.
    fn settle_pinned(&self, patience: Patience) {
        self.pinned().in_use.settle(patience, |memory| {
            let (uses, mut after) = (self.uses(), Dependencies::default());
            if let Some(slot) = uses.release_retired(self.pinned_owner(), memory.id, &mut after) {
                uses.vacate(slot);
                self.pend_pinned(memory, after);
            }
        });
    }

    /// Makes pinned memory pending. `after` has its dependencies on other streams than its home stream.
    fn pend_pinned(&self, memory: HostMemory, mut after: Dependencies) {
        let home = memory.id.alloc_stream();
        after.add(home, self.uses().submitted(home));
        self.record_on(home);
        self.pinned().pending.push(home, Pending { value: memory, after });
    }

    /// Records an event on a home stream, so that a later poll finds whether the work submitted until now is
    /// done. If that fails, the poll records one. Leaves the current context as it is. Records none on a
    /// default stream of CUDA, which could end the capture of a blocking stream.
    fn record_on(&self, home: StreamId) {
        let Ok(HomeStream::Live(home)) = self.enter_home(home) else { return };
        if home.is_default_of_cuda() {
            return;
        }
        let before = result::ctx::get_current();
        let _ = self.progress().event_on(&home);
        if let Ok(before) = before
            && result::ctx::get_current() != Ok(before)
        {
            // SAFETY: the context was current until now.
            let _ = unsafe { sys::cuCtxSetCurrent(before.unwrap_or(std::ptr::null_mut())) };
        }
    }

    /// Frees the pinned memory whose uses are done, and leaves the rest to [`reap_orphaned_pinned`]: a drop
    /// does not wait. Called when the last owner of the pool is dropped.
    pub(crate) fn end_pinned(&self) {
        // In a forked child another thread may have held a lock. A lost device frees nothing.
        if self.device().check().is_err() {
            return;
        }
        // Memory that cannot be freed becomes orphaned. On an idle stream, an event takes a moment after its
        // record.
        for _ in 0..2 {
            let _ = self.try_reap_pinned();
        }
        let _ = self.pinned().pending.reap(Patience::Wait, |Pending { value, after }| {
            // Without events there is no way to find out when the memory may be freed, so it leaks. So
            // does memory with an open window, whose work is in no ledger.
            let events = self.uses().events_of(after)?;
            let device = self.device().clone();
            let (ptr, bytes) = (value.id.ptr(), value.bytes);
            ORPHANS.get().push(Orphan { ptr, bytes, events, device });
            Ok(true)
        });
    }
}

/// Waits for, and frees, pinned memory that was still in use when the last owner of its stream pool
/// was dropped; returns its bytes. Allocating pinned memory frees it, too, once the device is done
/// with it. For the end of a process, or of a test that looks for leaks.
///
/// Such memory keeps the CUDA context alive, and nothing else. That of a lost device is forgotten: it
/// cannot be freed before the process ends.
///
/// # Errors
///
/// The first error. What could not be freed is kept: call again.
pub fn reap_orphaned_pinned() -> ResourceResult<u64> {
    ORPHANS.get().reap(Patience::Wait)
}

/// Pinned memory of stream pools that were dropped. A forked child has none.
static ORPHANS: PerProcess<Orphans> = PerProcess::new(Orphans::default);

/// The pinned memory of a stream pool that was dropped and is not freed.
pub(crate) struct Dropped {
    in_use: BlocksInUse<HostMemory>,
    pending: PendingFrees<HostMemory>,
}

impl Dropped {
    pub(crate) fn new(owner: &BlockOwner) -> Self {
        let bytes_of = |memory: &HostMemory| memory.bytes as u64;
        Self { in_use: BlocksInUse::new(owner), pending: PendingFrees::new(1, bytes_of) }
    }
}

/// Pinned memory that was dropped, by its block in the use table.
#[derive(Clone, Copy, Debug)]
struct HostMemory {
    id: BlockId,
    bytes: usize,
}

/// Pinned memory whose use table is gone.
struct Orphan {
    ptr: u64,
    bytes: usize,
    /// The events of its uses that are not known to be done.
    events: SmallVec<[Event; 4]>,
    device: Device,
}

#[derive(Default)]
struct Orphans {
    waiting: Mutex<Vec<Orphan>>,
    /// Held while reaping, so that a reap that waits also waits for the memory that another thread is
    /// freeing.
    reaping: Mutex<()>,
}

impl Orphans {
    fn push(&self, orphan: Orphan) {
        lock(&self.waiting).push(orphan);
    }

    fn reap(&self, patience: Patience) -> ResourceResult<u64> {
        let Some(_alone) = patience.lock(&self.reaping) else { return Ok(0) };
        // Not under the lock that dropping takes: this calls the driver, and may wait for it.
        let taken = std::mem::take(&mut *lock(&self.waiting));
        let (mut freed, mut outcome) = (0, Ok(()));
        for mut orphan in taken {
            match orphan.free(patience) {
                Ok(Some(bytes)) => freed += bytes,
                kept => {
                    outcome = outcome.and(kept.map(drop));
                    self.push(orphan);
                }
            }
        }
        outcome.map(|()| freed)
    }
}

impl Orphan {
    /// Frees the memory if its uses are done, and returns its bytes.
    fn free(&mut self, patience: Patience) -> ResourceResult<Option<u64>> {
        match self.is_done(patience) {
            Err(_) if self.device.is_lost() => return Ok(Some(0)),
            Err(error) => return Err(error),
            Ok(false) => return Ok(None),
            Ok(true) => {}
        }
        free_host(&self.device, self.ptr)?;
        Ok(Some(self.bytes as u64))
    }

    fn is_done(&mut self, patience: Patience) -> ResourceResult<bool> {
        let events = &mut self.events;
        self.device.relaxed(|relaxed| {
            while let Some(event) = events.last() {
                match patience {
                    Patience::Wait => event.driver_event().synchronize(relaxed)?,
                    Patience::Poll if !event.driver_event().query(relaxed)? => return Ok(false),
                    Patience::Poll => {}
                }
                events.pop();
            }
            Ok(true)
        })
    }
}

/// Frees pinned memory. No device work uses it.
fn free_host(device: &Device, ptr: u64) -> ResourceResult<()> {
    // SAFETY: allocated by `allocate_pinned`, and not freed before.
    let free = || unsafe { result::free_host(with_exposed_provenance_mut(ptr as usize)) };
    device.relaxed(|_| free().map_err(|error| device.driver_error("cuMemFreeHost", error)))
}
