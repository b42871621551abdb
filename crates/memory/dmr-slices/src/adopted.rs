//! Slices into the use table, and out of it.

use std::mem;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, DevicePtrMut};
use dmr_core::error::StreamProblem;
use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::{AllocTag, DeviceBlock, ResourceError, ResourceResult, StreamId};
use dmr_external::{AdoptedBlocks, ReservedSlot};
use dmr_streams::event::DriverEvent;
use dmr_streams::{Device, StreamGuard, StreamPool};

use crate::memory::SliceMemory;
use crate::slice::{checked, slice_at};

/// The adopted slices of a stream pool.
pub(crate) type Slices = AdoptedBlocks<SliceMemory>;

/// A slice that is about to become a block.
pub(crate) struct Prepared<'p> {
    home: StreamGuard<'p>,
    slot: ReservedSlot,
}

impl Prepared<'_> {
    /// Makes the block of the slice.
    pub(crate) fn hold<T>(
        self,
        slices: &Slices,
        slice: CudaSlice<T>,
        tag: AllocTag,
    ) -> DeviceBlock {
        let memory = SliceMemory::of(slice);
        // SAFETY: the memory was the slice's; the home stream comes after its pending work.
        unsafe { slices.hold(self.slot, &self.home, memory, tag) }
    }
}

/// Orders the next work on `home` after the pending work of a slice, and reserves a place in the
/// use table for it.
pub(crate) fn prepare<'p, T>(
    slices: &'p Slices,
    slice: &mut CudaSlice<T>,
    home: StreamId,
) -> ResourceResult<Prepared<'p>> {
    let streams: &StreamPool = slices.streams();
    let device: &Device = streams.device();
    let home = streams.enter(home)?;
    let own = Arc::clone(slice.stream());
    if slice.num_bytes() == 0 {
        return Err(ResourceError::zero_size());
    }
    if own.context().cu_ctx() != device.context().cu_ctx() {
        let problem = StreamProblem::OtherContext;
        return Err(ResourceError::stream_misuse(StreamId::UNISSUED, problem));
    }
    device.bind()?;
    home.refuse_capture()?;
    if own.cu_stream() != home.stream().cu_stream() {
        device.refuse_capture_of(&own)?;
        let event = DriverEvent::new(device)?;
        event.record_on_other(&own)?;
        // A capture may have begun meanwhile.
        device.refuse_capture_of(&own)?;
        home.wait_for_event(&event)?;
    }
    // Waits for cudarc's events of the last read and write.
    let waited = checked(home.stream().context(), || {
        let (ptr, recorded) = slice.device_ptr_mut(home.stream());
        // A record is of a write that comes next, and none does: the slice keeps its last write.
        mem::forget(recorded);
        ptr
    });
    let ptr = waited.map_err(|error| device.driver_error("cuStreamWaitEvent", error))?;
    if !ptr.is_multiple_of(BLOCK_ALIGNMENT as u64) {
        return Err(ResourceError::not_granular(ptr as usize, BLOCK_ALIGNMENT as u64));
    }
    let slot = slices.reserve(&home)?;
    Ok(Prepared { home, slot })
}

/// Takes a block out of the use table and returns a slice of its first `len` elements, whose stream
/// comes after all uses.
///
/// # Safety
///
/// Any bytes are a value of `T`.
pub(crate) unsafe fn give_back<T>(
    slices: &Slices,
    block: &DeviceBlock,
    len: usize,
) -> ResourceResult<CudaSlice<T>> {
    let bytes = len.saturating_mul(size_of::<T>());
    let taken = slices.take(block)?;
    let streams = slices.streams();
    let memory = &taken.memory;
    let fits = match bytes <= block.bytes() {
        true => Ok(()),
        false => Err(ResourceError::out_of_bounds(block, 0, bytes)),
    };
    let given = fits.and_then(|()| memory.order_after(streams, &taken.after)).and_then(|()| {
        // SAFETY: the block has the elements; the slice owns them once this has given them up; the
        // caller's obligation.
        unsafe { slice_at::<T>(streams.device(), &memory.stream, memory.ptr, len) }
    });
    match given {
        Ok(slice) => {
            drop(slices.give_up(taken));
            Ok(slice)
        }
        Err(error) => {
            slices.restore(taken);
            Err(error)
        }
    }
}
