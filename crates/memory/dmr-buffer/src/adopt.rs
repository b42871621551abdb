//! Slices of cudarc as buffers, and buffers as slices of cudarc.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use bytemuck::Pod;
use cudarc::driver::CudaSlice;
use dmr_core::error::StreamProblem;
use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::{AllocTag, DeallocateError, DeviceBlock, ResourceError, ResourceResult, StreamId};
use dmr_slices::{AdoptSliceError, CudaSlices, empty_slice, record_write, slice_at};
use dmr_streams::{DeviceContext, HomeStream, StreamGuard};

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
    /// Makes a buffer of a slice of cudarc, with its elements and its pending work: the next work
    /// on `stream`, the buffer's home stream, comes after the work on the slice's stream so far,
    /// and after the last read and the last write that cudarc has recorded. Does not wait.
    ///
    /// Dropping the buffer frees the slice as cudarc does, on the slice's own stream, once that has
    /// waited for all uses of the buffer; the host does not wait.
    ///
    /// cudarc records one reader, the last: if several other streams read the slice, synchronise
    /// them first. With cudarc's event tracking disabled, also those that wrote it.
    ///
    /// # Errors
    ///
    /// As [`CudaSlices::adopt`]. The slice is in the error, as it was. A slice of no elements
    /// becomes an empty buffer.
    pub fn adopt<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        slice: CudaSlice<T>,
    ) -> Result<Self, Box<AdoptSliceError<T>>> {
        const { assert!(align_of::<T>() <= BLOCK_ALIGNMENT, "blocks are aligned to less") };
        let slices = CudaSlices::of(ctx);
        let len = slice.len();
        let tag = AllocTag::new("cudarc");
        let owner = Owner { pinned: ctx.pinned_resources().cloned(), ..Owner::of(&slices) };
        let home = match owner.streams.enter(stream.into()) {
            Ok(stream) => stream.id(),
            Err(error) => return Err(AdoptSliceError::new(error, slice)),
        };
        let memory = match slice.num_bytes() {
            0 => None,
            _ => Some(slices.adopt(slice, home, tag)?),
        };
        Ok(Self { memory, len, home, tag, owner, elements: PhantomData })
    }

    /// Gives the buffer to cudarc, for good. The slice's stream waits for all uses of the buffer;
    /// cudarc orders later uses on other streams after that, and frees the memory.
    ///
    /// The slice has the [length](Self::len) of the buffer. What the buffer has
    /// [room](Self::capacity) for beyond that stays allocated, and cudarc frees it with the slice.
    ///
    /// The memory must be an allocation of the driver: that of a buffer of the direct or the async
    /// backend, of one that was [adopted](Self::adopt), or was made with [`CudaSlices`] as its
    /// context. Budgets, logs, statistics and other layers around the backend count it as freed.
    /// The slice has the stream of the adopted slice, or the home stream of the buffer.
    ///
    /// A resource that does not track uses orders nothing: the uses are those of the home stream.
    ///
    /// # Errors
    ///
    /// The buffer is in the error. [`NotGivenAway`](ResourceError::NotGivenAway) for memory of a
    /// pool, of mapped pages, and inside of a debug guard or an aligned resource: copy it into a
    /// buffer that is made with [`CudaSlices`]; [`WindowConflict`](ResourceError::WindowConflict)
    /// if a launch that uses it is prepared; [`StreamMisuse`](ResourceError::StreamMisuse) if the
    /// home stream was retired; [`StreamCapturing`](ResourceError::StreamCapturing);
    /// [`Driver`](ResourceError::Driver).
    pub fn into_cuda_slice(mut self) -> Result<CudaSlice<T>, Box<GiveAwayError<T>>> {
        let slices = CudaSlices::of(&self.owner);
        let Some(block) = self.memory.take() else {
            let empty = self
                .owner
                .home_for_slice(self.home)
                .and_then(|home| empty_slice(home.device(), home.stream()));
            return empty.map_err(|error| Box::new(GiveAwayError { error, buffer: self }));
        };
        // SAFETY: any bytes are a value of a `Pod`.
        let given = match unsafe { slices.give_back(block, self.len) } {
            Ok(slice) => Ok(slice),
            // The memory is another resource's.
            Err(refused) if matches!(refused.error, ResourceError::ForeignBlock { .. }) => {
                self.owner.give_away(refused.block, self.len)
            }
            Err(refused) => Err(Box::new(NotGiven::from(refused))),
        };
        given.map_err(|refused| {
            let NotGiven { error, block } = *refused;
            // A resource may return another block than it was given.
            self.memory = block;
            self.len = self.len.min(self.capacity());
            Box::new(GiveAwayError { error, buffer: self })
        })
    }
}

/// A block that was not given to cudarc.
struct NotGiven {
    error: ResourceError,
    /// `None` if it is gone all the same: its memory is leaked.
    block: Option<DeviceBlock>,
}

impl From<Box<DeallocateError>> for NotGiven {
    fn from(refused: Box<DeallocateError>) -> Self {
        let DeallocateError { error, block, .. } = *refused;
        Self { error, block: Some(block) }
    }
}

impl Owner {
    /// Gives a block of the resource to cudarc, as a slice of `len` elements on the block's home
    /// stream.
    fn give_away<T: Pod>(
        &self,
        block: DeviceBlock,
        len: usize,
    ) -> Result<CudaSlice<T>, Box<NotGiven>> {
        let id = block.id();
        let ptr = block.ptr();
        // First, because it may fail. Not dropped if the resource panics: it owns nothing yet.
        let (home, mut slice) = match self.slice_of::<T>(&block, len) {
            Ok((home, slice)) => (home, ManuallyDrop::new(slice)),
            Err(error) => return Err(Box::new(NotGiven { error, block: Some(block) })),
        };
        let recorded = match self.resource.give_away(block) {
            Ok(given)
                if (given.ptr(), given.home_stream()) == (ptr, id.alloc_stream())
                    && given.bytes() >= len * size_of::<T>() =>
            {
                // The home stream comes after all uses only now.
                record_write(home.device(), &mut slice, home.stream())
                    .or_else(|_| home.synchronize())
            }
            // The resource had another block.
            Ok(_) => Err(ResourceError::use_after_free(id.generation())),
            Err(refused) => {
                ManuallyDrop::into_inner(slice).leak();
                return Err(Box::new(NotGiven::from(refused)));
            }
        };
        match recorded {
            Ok(()) => Ok(ManuallyDrop::into_inner(slice)),
            Err(error) => {
                ManuallyDrop::into_inner(slice).leak();
                Err(Box::new(NotGiven { error, block: None }))
            }
        }
    }

    /// Makes a slice of a block's first elements, and returns it with its stream, the block's home
    /// stream. The slice owns nothing until the block is given away: leak it if it is not.
    fn slice_of<T: Pod>(
        &self,
        block: &DeviceBlock,
        len: usize,
    ) -> ResourceResult<(StreamGuard<'_>, CudaSlice<T>)> {
        let stream = self.home_for_slice(block.alloc_stream())?;
        self.streams.device().bind()?;
        // SAFETY: the block has the elements; any bytes are a value of a `Pod`.
        let slice = unsafe { slice_at(stream.device(), stream.stream(), block.ptr(), len) }?;
        Ok((stream, slice))
    }

    /// Returns a home stream as the stream of a slice, if it captures no graph.
    fn home_for_slice(&self, home: StreamId) -> ResourceResult<StreamGuard<'_>> {
        let HomeStream::Live(stream) = self.streams.enter_home(home)? else {
            return Err(ResourceError::stream_misuse(home, StreamProblem::ReturnedLease));
        };
        stream.refuse_capture()?;
        Ok(stream)
    }
}
