//! Slices of cudarc as blocks: adopted with their pending work, tracked, and given back.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::CudaSlice;
use dmr_core::{
    AllocTag, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceError, StreamId,
};
use dmr_streams::{DeviceContext, StreamPool};

use crate::adopted::{self, Slices};

/// The slices of cudarc that were adopted by a stream pool: a resource whose every block is a
/// [`CudaSlice`].
///
/// A block is a slice that was [adopted](Self::adopt), or one that
/// [`allocate`](DeviceMemoryResource::allocate) had cudarc allocate. Its uses are tracked. A slice
/// is freed as cudarc does: on its own stream, which waits for all uses of the block first; no
/// other stream waits, and the host does not. [`give_back`](Self::give_back) returns it.
///
/// All values for one stream pool are the same resource, which lives as long as the pool.
#[derive(Clone)]
pub struct CudaSlices {
    slices: Arc<Slices>,
    /// `slices`, as a context's resource.
    resource: Arc<dyn DeviceMemoryResource>,
}

/// A slice that could not be adopted, as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("a slice of cudarc was not adopted: {error}")]
pub struct AdoptSliceError<T> {
    /// The reason.
    #[source]
    pub error: ResourceError,
    /// The slice.
    pub slice: CudaSlice<T>,
}

impl<T> AdoptSliceError<T> {
    /// Makes the error, with the slice inside.
    #[must_use]
    pub fn new(error: ResourceError, slice: CudaSlice<T>) -> Box<Self> {
        Box::new(Self { error, slice })
    }
}

impl CudaSlices {
    /// Returns the slices that are adopted by the streams of `context`.
    #[must_use]
    pub fn of<C: DeviceContext + ?Sized>(context: &C) -> Self {
        let slices = Arc::new(Slices::new(Arc::clone(context.streams())));
        Self { resource: Arc::<Slices>::clone(&slices), slices }
    }

    /// Adopts a slice as a block whose home stream is `home`. The next work on `home` comes after
    /// the work on the slice's own stream so far, and after the last read and the last write that
    /// cudarc has recorded.
    ///
    /// cudarc records one reader, the last: if several other streams read the slice, synchronise
    /// them first. With cudarc's event tracking disabled, also those that wrote it.
    ///
    /// # Errors
    ///
    /// The slice is in the error, as it was, except that streams may have been made to wait.
    /// [`InvalidSize`](ResourceError::InvalidSize) for a slice of no bytes, and for an address that
    /// is no multiple of 256 bytes; [`StreamMisuse`](ResourceError::StreamMisuse) for a slice of
    /// another context; [`StreamCapturing`](ResourceError::StreamCapturing) if either stream
    /// captures a graph; [`Driver`](ResourceError::Driver).
    pub fn adopt<T>(
        &self,
        mut slice: CudaSlice<T>,
        home: StreamId,
        tag: AllocTag,
    ) -> Result<DeviceBlock, Box<AdoptSliceError<T>>> {
        match adopted::prepare(&self.slices, &mut slice, home) {
            Ok(prepared) => Ok(prepared.hold(&self.slices, slice, tag)),
            Err(error) => Err(AdoptSliceError::new(error, slice)),
        }
    }

    /// Gives a block back as a slice of its first `len` elements, whose stream waits for all uses
    /// of the block, and for the work on the home stream. cudarc orders its later uses on other
    /// streams after that. The slice owns all memory of the block, whatever its length.
    ///
    /// # Errors
    ///
    /// The block is in the error, and is as it was. [`OutOfBounds`](ResourceError::OutOfBounds) for
    /// more elements than the block has bytes for; [`ForeignBlock`](ResourceError::ForeignBlock)
    /// for a block of another resource; [`WindowConflict`](ResourceError::WindowConflict) if a
    /// launch that uses it is prepared; [`StreamCapturing`](ResourceError::StreamCapturing);
    /// [`Driver`](ResourceError::Driver).
    ///
    /// # Safety
    ///
    /// Any bytes are a value of `T`.
    pub unsafe fn give_back<T>(
        &self,
        block: DeviceBlock,
        len: usize,
    ) -> Result<CudaSlice<T>, Box<DeallocateError>> {
        // SAFETY: the caller's obligation.
        match unsafe { adopted::give_back(&self.slices, &block, len) } {
            Ok(slice) => Ok(slice),
            Err(error) => Err(DeallocateError::new(error, block)),
        }
    }
}

impl DeviceContext for CudaSlices {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        self.slices.streams()
    }
}

impl fmt::Debug for CudaSlices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaSlices").field(&self.resource).finish()
    }
}
