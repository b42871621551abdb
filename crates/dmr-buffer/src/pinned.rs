//! Page-locked host memory, which the device copies to and from while the host goes on.

use std::fmt;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use cudarc::driver::{result, sys};
use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockState, DeviceBlock, Generation, ResourceResult, StreamId,
};
use dmr_streams::Dependencies;
use dmr_streams::{DeviceContext, FreeOrder, MemoryOrigin, StreamPool, TrackedMemory};

use crate::owner::{Kind, Owner};
use crate::transfer::{self, Span};
use crate::view::same_len;
use crate::{BufferError, DeviceView, DeviceViewMut};

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context of the process.
const PORTABLE: u32 = 1;

/// Elements in page-locked host memory, for copies that do not wait.
///
/// The use table of the streams knows it like a block. So copies on any stream are ordered with
/// each other, and kernels can be given it through a launch recorder: the device sees it at the
/// same address.
///
/// # The host's turn
///
/// [`as_slice`](Self::as_slice) and [`as_mut_slice`](Self::as_mut_slice) wait until every recorded
/// use is done. They borrow the buffer exclusively, so that no copy can be submitted while the host
/// has the slice.
///
/// # Dropping it
///
/// Waits for nothing and calls no driver. The memory is *retired*, and freed once its uses are
/// done: asked when the next pinned buffer of the pool is made and in [`try_reap_pinned`], waited
/// for in [`reap_pinned`]. A buffer that only its home stream has used counts as done when that
/// stream is idle.
pub struct PinnedBuffer<T: Pod> {
    /// `None` for no bytes, and once it has been retired.
    block: Option<DeviceBlock>,
    elements: NonNull<T>,
    len: usize,
    owner: Owner,
}

// SAFETY: it owns its elements as a `Vec` does; nothing in it belongs to a thread.
unsafe impl<T: Pod + Send> Send for PinnedBuffer<T> {}
// SAFETY: shared, it gives no access to the elements but to the device, ordered by the use table.
unsafe impl<T: Pod + Sync> Sync for PinnedBuffer<T> {}

impl<T: Pod> PinnedBuffer<T> {
    /// `len` elements, all zero, mostly used on `stream`: its home stream.
    ///
    /// # Errors
    ///
    /// [`TooLong`](BufferError::TooLong); stream errors; driver errors, among them that the host
    /// has no more memory to lock.
    pub fn zeroed<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        len: usize,
    ) -> Result<Self, BufferError> {
        const { assert!(align_of::<T>() <= BLOCK_ALIGNMENT, "pages are not aligned to that") };
        let element_bytes = size_of::<T>();
        let bytes = len
            .checked_mul(element_bytes)
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or(BufferError::TooLong { len, element_bytes })?;
        let owner = Owner::of(ctx);
        let home = owner.streams.resolve_id(stream.into())?;
        if bytes == 0 {
            return Ok(Self { block: None, elements: NonNull::dangling(), len, owner });
        }
        // What cannot be freed stays retired, and is no reason to refuse this one.
        let _ = try_reap_pinned(ctx);
        let (block, elements) = allocate(&owner.streams, home, bytes)?;
        Ok(Self { block: Some(block), elements: elements.cast(), len, owner })
    }

    /// A copy of the slice.
    ///
    /// # Errors
    ///
    /// As [`zeroed`](Self::zeroed).
    pub fn from_slice<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        host: &[T],
    ) -> Result<Self, BufferError> {
        let mut pinned = Self::zeroed(ctx, stream, host.len())?;
        pinned.elements_mut().copy_from_slice(host);
        Ok(pinned)
    }

    /// How many elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements, once every recorded use is done. Waits for that.
    ///
    /// # Errors
    ///
    /// [`InUse`](BufferError::InUse) while a launch that uses it is prepared and not finished;
    /// driver errors, when nothing is known of the uses.
    pub fn as_slice(&mut self) -> Result<&[T], BufferError> {
        self.as_mut_slice().map(|elements| &*elements)
    }

    /// The elements, to read and write, once every recorded use is done. Waits for that.
    ///
    /// # Errors
    ///
    /// As [`as_slice`](Self::as_slice).
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], BufferError> {
        if let Some(block) = &self.block {
            let (uses, id) = (self.owner.streams.uses(), block.id());
            // Only what is retired is asked after. Nobody sees it: the borrow is exclusive.
            uses.retire(id)?;
            let order = uses.free_order(id);
            uses.unretire(id);
            match order? {
                FreeOrder::InUse => return Err(BufferError::InUse),
                FreeOrder::Home => self.owner.streams.synchronize(permanent(id.alloc_stream()))?,
                FreeOrder::After(uses) => uses.synchronize()?,
            }
        }
        Ok(self.elements_mut())
    }

    /// Copies the elements to as many on the device, ordered on `stream`. Does not wait.
    ///
    /// # Errors
    ///
    /// [`LengthMismatch`](BufferError::LengthMismatch);
    /// [`Resource`](BufferError::Resource): stream, use and driver errors.
    pub fn copy_to_device<'t>(
        &self,
        target: impl Into<DeviceViewMut<'t, T>>,
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError>
    where
        T: 't,
    {
        let target = target.into();
        same_len(self.len, target.len())?;
        transfer::copy_pinned(target.as_view().span(), self.span(), stream.into())
    }

    /// Overwrites the elements with as many of the device, ordered on `stream`. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`copy_to_device`](Self::copy_to_device).
    pub fn copy_from_device<'s>(
        &mut self,
        source: impl Into<DeviceView<'s, T>>,
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError>
    where
        T: 's,
    {
        let source = source.into();
        same_len(source.len(), self.len)?;
        transfer::copy_pinned(self.span(), source.span(), stream.into())
    }

    /// The caller has made sure that the device does not use them.
    fn elements_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` elements that were written when they were allocated, aligned, ours alone
        // while this is borrowed; any bytes are a `Pod`.
        unsafe { slice::from_raw_parts_mut(self.elements.as_ptr(), self.len) }
    }

    fn span(&self) -> Span<'_> {
        let block = self.block.as_ref();
        Span {
            owner: &self.owner,
            block: block.map(DeviceBlock::id),
            ptr: block.map_or(0, DeviceBlock::ptr),
            bytes: self.len * size_of::<T>(),
            kind: Kind::Pinned,
        }
    }
}

impl<T: Pod> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        // It is in the table until it is freed, so this cannot fail.
        let _ = self.owner.streams.uses().retire(block.id());
        let (owner, after) = (self.owner.clone(), None);
        retired().push(Retired { block, after, owner });
    }
}

impl<T: Pod> TrackedMemory for PinnedBuffer<T> {
    fn device_ptr(&self) -> u64 {
        self.block.as_ref().map_or(0, DeviceBlock::ptr)
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        self.block.as_ref().map_or(MemoryOrigin::Empty, |block| MemoryOrigin::Block(block.id()))
    }
}

impl<T: Pod> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer")
            .field("element", &std::any::type_name::<T>())
            .field("len", &self.len)
            .field("block", &self.block)
            .finish_non_exhaustive()
    }
}

/// Frees the pinned buffers of the context's streams that were dropped and whose uses are done;
/// answers their bytes. Asks the driver after the uses and does not wait for them.
///
/// # Errors
///
/// The first error. What could not be freed is still retired: call again.
pub fn try_reap_pinned<C: DeviceContext + ?Sized>(ctx: &C) -> ResourceResult<u64> {
    reap(ctx, Patience::Poll)
}

/// Waits for the pinned buffers of the context's streams that were dropped, unless a launch that
/// uses one is prepared and not finished, and frees them; answers their bytes.
///
/// # Errors
///
/// As [`try_reap_pinned`].
pub fn reap_pinned<C: DeviceContext + ?Sized>(ctx: &C) -> ResourceResult<u64> {
    reap(ctx, Patience::Wait)
}

/// Dropped and not freed yet, of all pools.
static RETIRED: Mutex<Vec<Retired>> = Mutex::new(Vec::new());

struct Retired {
    block: DeviceBlock,
    /// What it waits for, once no window is open and another stream has used it.
    after: Option<Dependencies>,
    owner: Owner,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Poll,
    Wait,
}

fn retired() -> MutexGuard<'static, Vec<Retired>> {
    RETIRED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reap<C: DeviceContext + ?Sized>(ctx: &C, patience: Patience) -> ResourceResult<u64> {
    let pool = ctx.streams().id();
    // Not under the lock: the driver is asked, and may be waited for.
    let ours: Vec<_> =
        retired().extract_if(.., |retired| retired.owner.streams.id() == pool).collect();
    let (mut freed, mut outcome) = (0, Ok(()));
    for mut retired in ours {
        match retired.free(patience) {
            Ok(true) => freed += retired.block.bytes() as u64,
            answer => {
                outcome = outcome.and(answer.map(drop));
                self::retired().push(retired);
            }
        }
    }
    outcome.map(|()| freed)
}

impl Retired {
    /// Frees the memory if its uses are done, and says whether it did.
    fn free(&mut self, patience: Patience) -> ResourceResult<bool> {
        if !self.is_done(patience)? {
            return Ok(false);
        }
        let (streams, id) = (&self.owner.streams, self.block.id());
        streams.device().bind()?;
        free_host(streams, self.block.ptr())?;
        streams.uses().remove(id);
        Ok(true)
    }

    fn is_done(&mut self, patience: Patience) -> ResourceResult<bool> {
        let (streams, id) = (&self.owner.streams, self.block.id());
        if self.after.is_none() {
            match streams.uses().free_order(id)? {
                FreeOrder::InUse => return Ok(false),
                FreeOrder::After(uses) => self.after = Some(uses),
                FreeOrder::Home => return home_is_done(streams, id, patience),
            }
        }
        match (&self.after, patience) {
            (None, _) => Ok(true),
            (Some(uses), Patience::Poll) => uses.is_done(),
            (Some(uses), Patience::Wait) => uses.synchronize().map(|()| true),
        }
    }
}

fn home_is_done(streams: &StreamPool, id: BlockId, patience: Patience) -> ResourceResult<bool> {
    let home = permanent(id.alloc_stream());
    if patience == Patience::Wait {
        return streams.synchronize(home).map(|()| true);
    }
    let stream = streams.resolve(home)?;
    streams.device().bind()?;
    // SAFETY: the stream is alive, because its pool is.
    match unsafe { sys::cuStreamQuery(stream.cu_stream()) }.result() {
        Ok(()) => Ok(true),
        Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        Err(error) => Err(streams.device().driver_error("cuStreamQuery", error)),
    }
}

/// The same stream, by an id that outlives its lease.
fn permanent(stream: StreamId) -> StreamId {
    let id = stream.pool().and_then(|pool| StreamId::from_parts(pool, stream.slot(), 0));
    id.unwrap_or(stream)
}

/// Zeroed memory, in the use table as if `home` had written it.
fn allocate(
    streams: &StreamPool,
    home: StreamId,
    bytes: usize,
) -> ResourceResult<(DeviceBlock, NonNull<u8>)> {
    let device = streams.device();
    device.bind()?;
    // SAFETY: what is allocated is written below, before anybody reads it.
    let memory = unsafe { result::malloc_host(bytes, PORTABLE) }
        .map_err(|error| device.driver_error("cuMemHostAlloc", error))?
        .cast::<u8>();
    let ptr = memory.expose_provenance() as u64;
    let generation = Generation::next();
    let slot = match streams.uses().insert(generation, home) {
        Ok(slot) => slot,
        Err(error) => {
            // Why there is no buffer says more than a failed free.
            let _ = free_host(streams, ptr);
            return Err(error);
        }
    };
    // SAFETY: the driver answers no null pointer, and gave these bytes.
    let memory = unsafe {
        memory.write_bytes(0, bytes);
        NonNull::new_unchecked(memory)
    };
    // SAFETY: the driver has just given these bytes, on a page's start; the device sees them at the
    // same address. They stay until the use table says that nobody uses them. No resource gets the
    // block. The generation is new.
    let block = unsafe {
        DeviceBlock::from_parts(BlockParts {
            ptr,
            bytes,
            reserved_bytes: bytes,
            alignment: BLOCK_ALIGNMENT,
            device_ordinal: device.ordinal(),
            alloc_stream: home,
            tag: AllocTag::new("pinned"),
            generation,
            slot,
            state: BlockState::Live,
        })
    };
    Ok((block, memory))
}

/// For memory that nobody uses.
fn free_host(streams: &StreamPool, ptr: u64) -> ResourceResult<()> {
    // SAFETY: allocated by `allocate`, and not freed before.
    unsafe { result::free_host(with_exposed_provenance_mut(ptr as usize)) }
        .map_err(|error| streams.device().driver_error("cuMemFreeHost", error))
}
