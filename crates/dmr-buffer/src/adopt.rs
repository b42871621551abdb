//! Slices of cudarc as buffers, and buffers as slices of cudarc.

use std::marker::PhantomData;

use bytemuck::Pod;
use cudarc::driver::CudaSlice;
use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::{AllocTag, ResourceError, StreamId};
use dmr_streams::{AdoptSliceError, CudaSlices, DeviceContext};

use crate::DeviceBuffer;
use crate::owner::Owner;

/// A buffer that could not be given to cudarc, as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("a buffer was not given to cudarc: {error}")]
pub struct GiveAwayError<T: Pod> {
    /// The reason.
    #[source]
    pub error: ResourceError,
    /// The buffer.
    pub buffer: DeviceBuffer<T>,
}

impl<T: Pod> DeviceBuffer<T> {
    /// Makes a buffer of a slice of cudarc, with its elements and its pending work: the next work on `stream`, the
    /// buffer's home stream, comes after the work on the slice's stream so far, and after the last read and the last
    /// write that cudarc has recorded. Does not wait.
    ///
    /// Dropping the buffer frees the slice as cudarc does, on the slice's own stream, once that has waited for all uses
    /// of the buffer; the host does not wait.
    ///
    /// cudarc records one reader, the last: if several other streams read the slice, synchronise them first. With
    /// cudarc's event tracking disabled, also those that wrote it.
    ///
    /// # Errors
    ///
    /// As [`CudaSlices::adopt`]. The slice is in the error, as it was. A slice of no elements becomes an empty buffer.
    pub fn adopt<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        slice: CudaSlice<T>,
    ) -> Result<Self, Box<AdoptSliceError<T>>> {
        const { assert!(align_of::<T>() <= BLOCK_ALIGNMENT, "blocks are aligned to less") };
        let slices = CudaSlices::of(ctx);
        let (len, tag, owner) = (slice.len(), AllocTag::new("cudarc"), Owner::of(&slices));
        let home = match owner.streams.enter(stream.into()) {
            Ok(stream) => stream.id(),
            Err(error) => return Err(AdoptSliceError::new(error, slice)),
        };
        let block = match slice.num_bytes() {
            0 => None,
            _ => Some(slices.adopt(slice, home, tag)?),
        };
        Ok(Self { block, len, home, tag, owner, elements: PhantomData })
    }

    /// Gives the buffer to cudarc, for good. The slice's stream waits for all uses of the buffer; cudarc orders later
    /// uses on other streams after that, and frees the memory.
    ///
    /// The memory must be cudarc's: that of a buffer that was [adopted](Self::adopt), or was made with [`CudaSlices`] as
    /// its context. The slice has the stream of the adopted slice, or the stream that the buffer was made on.
    ///
    /// # Errors
    ///
    /// The buffer is in the error. [`ForeignBlock`](ResourceError::ForeignBlock) for a buffer of any other resource:
    /// copy it into one that is made with [`CudaSlices`]; [`WindowConflict`](ResourceError::WindowConflict) if a launch that
    /// uses it is prepared; [`StreamCapturing`](ResourceError::StreamCapturing);
    /// [`Driver`](ResourceError::Driver).
    pub fn into_cuda_slice(mut self) -> Result<CudaSlice<T>, Box<GiveAwayError<T>>> {
        let slices = CudaSlices::of(&self.owner);
        let Some(block) = self.block.take() else {
            let failed = |error| self.owner.streams.device().driver_error("cuMemAllocAsync", error);
            let empty = self
                .owner
                .streams
                .resolve(self.home)
                .and_then(|stream| stream.null().map_err(failed));
            return empty.map_err(|error| Box::new(GiveAwayError { error, buffer: self }));
        };
        // SAFETY: any bytes are a value of a `Pod`.
        unsafe { slices.give_back(block) }.map_err(|refused| {
            let dmr_core::DeallocateError { error, block, .. } = *refused;
            self.block = Some(block);
            Box::new(GiveAwayError { error, buffer: self })
        })
    }
}
