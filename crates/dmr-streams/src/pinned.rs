//! Page-locked host memory, kept until the streams of its pool are done with it.

use std::fmt;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use cudarc::driver::result;
use dmr_core::process::PerProcess;
use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockState, DeviceBlock, Generation, ResourceError,
    ResourceResult, StreamId,
};

use crate::{Dependencies, FreeOrder, RelaxedCapture, StreamPool};

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context of the process.
const PORTABLE: u32 = 1;

/// Page-locked host memory in the use table of a [`StreamPool`], which it keeps alive.
///
/// Dropping it *retires* it: the pool frees the memory once its uses are done. See
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
    /// Returns the block that the use table has for this memory. The device sees it at the host's
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
        let (uses, id) = (self.streams.uses(), self.block.id());
        match uses.free_order(id)? {
            FreeOrder::InUse => return Ok(false),
            FreeOrder::Home => uses.work_so_far(id.alloc_stream())?.synchronize()?,
            FreeOrder::After(uses) => uses.synchronize()?,
        }
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
        // It is in the table until it is freed, so this cannot fail.
        let _ = streams.uses().retire(streams.pinned_owner(), id);
        let retired = Retired { id, bytes: self.block.bytes(), after: None };
        streams.pinned().waiting().push(retired);
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
    /// [`StreamMisuse`](ResourceError::StreamMisuse); driver errors, among them that the host has
    /// no more memory to lock.
    pub fn allocate_pinned(
        self: &Arc<Self>,
        bytes: usize,
        home: StreamId,
    ) -> ResourceResult<PinnedMemory> {
        let (device, home) = (self.device(), self.enter(home)?);
        if bytes == 0 {
            return Err(ResourceError::zero_size());
        }
        // What cannot be freed stays retired, and is no reason to refuse this allocation.
        let _ = reap_orphans(Patience::Poll);
        let _ = self.try_reap_pinned();
        let relaxed = device.relaxed()?;
        // SAFETY: what is allocated is written below, before anything reads it.
        let start = unsafe { result::malloc_host(bytes, PORTABLE) }
            .map_err(|error| device.driver_error("cuMemHostAlloc", error))?
            .cast::<u8>();
        let ptr = start.expose_provenance() as u64;
        let generation = Generation::next();
        let slot = match self.uses().insert(self.pinned_owner(), generation, &home, 0) {
            Ok(slot) => slot,
            Err(error) => {
                // That error says more than one of the free.
                let _ = free_host(&relaxed, ptr);
                return Err(error);
            }
        };
        // SAFETY: the driver returns no null pointer for bytes, and gave these.
        let start = unsafe {
            start.write_bytes(0, bytes);
            NonNull::new_unchecked(start)
        };
        // SAFETY: the driver has just given these bytes, on a page boundary; the device sees them
        // at the same address. They stay until the use table says that they have no use left. No
        // resource gets the block. The generation is new.
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
    /// Memory that only its home stream has used counts as done when that stream is idle, or past
    /// the point of the first poll. On a lost device nothing can be freed, which is no error.
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
        // Nothing can free it before the process ends.
        if self.device().is_lost() {
            return Ok(0);
        }
        self.pinned().reap(patience, |retired, patience| retired.free(self, patience))
    }

    /// Called when the last owner of the pool is gone. Frees the pinned memory whose uses are done,
    /// and leaves the rest to [`reap_orphaned_pinned`]: a drop waits for nothing.
    pub(crate) fn end_pinned(&self) {
        // In a forked child another thread may have held a lock. A lost device frees nothing.
        if self.device().check().is_err() {
            return;
        }
        for mut retired in std::mem::take(&mut *self.pinned().waiting()) {
            if matches!(retired.free(self, Patience::Poll), Ok(Some(_))) {
                continue;
            }
            // Without dependencies there is no way to find out when the memory may be freed, so it
            // leaks: a window is open, and its work is in no ledger, or the driver recorded no
            // event.
            if let Some(after) = retired.after {
                let (ptr, bytes) = (retired.id.ptr(), retired.bytes);
                ORPHANS.get().waiting().push(Orphan { ptr, bytes, after });
            }
        }
    }
}

/// Waits for, and frees, pinned memory that was still in use when the last owner of its stream pool
/// was dropped; returns its bytes. Allocating pinned memory frees it, too, once the device is done
/// with it. For the end of a process, or of a test that looks for leaks.
///
/// Such memory keeps the CUDA context alive, and nothing else. That of a lost device is forgotten:
/// nothing can free it before the process ends.
///
/// # Errors
///
/// The first error. What could not be freed is kept: call again.
pub fn reap_orphaned_pinned() -> ResourceResult<u64> {
    reap_orphans(Patience::Wait)
}

fn reap_orphans(patience: Patience) -> ResourceResult<u64> {
    ORPHANS.get().reap(patience, Orphan::free)
}

/// Pinned memory of stream pools that were dropped. A forked child has none.
static ORPHANS: PerProcess<Queue<Orphan>> = PerProcess::new(Queue::new);

/// Pinned memory that waits to be freed.
pub(crate) struct Queue<T> {
    waiting: Mutex<Vec<T>>,
    /// Held while reaping, so that a waiting reap also covers what another thread has taken out.
    reaping: Mutex<()>,
}

/// Pinned memory that was dropped and is still in the use table.
pub(crate) struct Retired {
    id: BlockId,
    bytes: usize,
    /// The dependencies of its free; set once no window is open.
    after: Option<Dependencies>,
}

/// Pinned memory whose use table is gone.
struct Orphan {
    ptr: u64,
    bytes: usize,
    after: Dependencies,
}

#[derive(Clone, Copy)]
enum Patience {
    Poll,
    Wait,
}

impl Patience {
    fn is_done(self, after: &Dependencies) -> ResourceResult<bool> {
        match self {
            Self::Poll => after.is_done(),
            Self::Wait => after.synchronize().map(|()| true),
        }
    }
}

impl<T> Queue<T> {
    pub(crate) const fn new() -> Self {
        Self { waiting: Mutex::new(Vec::new()), reaping: Mutex::new(()) }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `free` for each entry; keeps those for which it returns no bytes. Returns the sum, or
    /// the first error.
    fn reap(
        &self,
        patience: Patience,
        free: impl Fn(&mut T, Patience) -> ResourceResult<Option<u64>>,
    ) -> ResourceResult<u64> {
        let _alone = match (patience, self.reaping.try_lock()) {
            (_, Ok(alone)) => alone,
            (_, Err(TryLockError::Poisoned(poisoned))) => poisoned.into_inner(),
            (Patience::Poll, _) => return Ok(0),
            (Patience::Wait, _) => self.reaping.lock().unwrap_or_else(PoisonError::into_inner),
        };
        // Not under the lock that dropping takes: this calls the driver, and may wait for it.
        let taken = std::mem::take(&mut *self.waiting());
        let (mut freed, mut outcome) = (0, Ok(()));
        for mut memory in taken {
            match free(&mut memory, patience) {
                Ok(Some(bytes)) => freed += bytes,
                kept => {
                    outcome = outcome.and(kept.map(drop));
                    self.waiting().push(memory);
                }
            }
        }
        outcome.map(|()| freed)
    }
}

impl Retired {
    /// Frees the memory if its uses are done, and returns its bytes.
    fn free(&mut self, streams: &StreamPool, patience: Patience) -> ResourceResult<Option<u64>> {
        if self.after.is_none() {
            self.after = self.order(streams)?;
        }
        let Some(after) = &self.after else { return Ok(None) };
        if !patience.is_done(after)? {
            return Ok(None);
        }
        free_host(&streams.device().relaxed()?, self.id.ptr())?;
        streams.uses().remove(streams.pinned_owner(), self.id);
        Ok(Some(self.bytes as u64))
    }

    /// Returns the dependencies of the free; `None` while a window is open.
    fn order(&self, streams: &StreamPool) -> ResourceResult<Option<Dependencies>> {
        let home = self.id.alloc_stream();
        let uses = streams.uses();
        // An idle stream needs no event, which would not be done at once.
        if streams.is_home_idle(home)? {
            return uses.uses_elsewhere(self.id);
        }
        Ok(match uses.free_order(self.id)? {
            FreeOrder::InUse => None,
            FreeOrder::After(uses) => Some(uses),
            FreeOrder::Home => Some(uses.work_so_far(home)?),
        })
    }
}

impl Orphan {
    fn free(&mut self, patience: Patience) -> ResourceResult<Option<u64>> {
        match patience.is_done(&self.after) {
            Err(_) if self.after.device().is_lost() => return Ok(Some(0)),
            Err(error) => return Err(error),
            Ok(false) => return Ok(None),
            Ok(true) => {}
        }
        free_host(&self.after.device().relaxed()?, self.ptr)?;
        Ok(Some(self.bytes as u64))
    }
}

/// Frees memory that no device work uses any more.
fn free_host(relaxed: &RelaxedCapture<'_>, ptr: u64) -> ResourceResult<()> {
    // SAFETY: allocated by `allocate_pinned`, and not freed before.
    unsafe { result::free_host(with_exposed_provenance_mut(ptr as usize)) }
        .map_err(|error| relaxed.device().driver_error("cuMemFreeHost", error))
}
