//! The resource of the adopted slices of a stream pool.

use std::fmt;
use std::sync::Arc;

use dmr_core::size::{BLOCK_ALIGNMENT, checked_round_up};
use dmr_core::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    ResourceError, ResourceResult, StreamId, StreamPoolId, Usage, UseTracking,
};
use dmr_streams::StreamPool;
use dmr_streams::uses::Patience;

use crate::adopted::AdoptedSlices;

/// The adopted slices of a stream pool.
pub(crate) struct Slices {
    streams: Arc<StreamPool>,
}

impl Slices {
    pub(crate) fn new(streams: Arc<StreamPool>) -> Self {
        Self { streams }
    }

    fn adopted(&self) -> AdoptedSlices<'_> {
        AdoptedSlices::of(&self.streams)
    }
}

impl DeviceMemoryResource for Slices {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        checked_round_up(bytes, BLOCK_ALIGNMENT)?;
        let total = self.streams.device().total_memory();
        if bytes as u64 > total {
            return Err(ResourceError::beyond_device(bytes, total));
        }
        let stream = self.streams.enter(stream)?;
        stream.refuse_capture()?;
        // What cannot be freed stays retired: this may be allocated all the same.
        let _ = self.adopted().free_closed(Patience::Poll);
        self.adopted().allocate(bytes, &stream, tag)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.adopted().deallocate(&block).map_err(|error| DeallocateError::new(error, block))
    }

    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.adopted().refuse_part(block)?;
        Ok(bytes <= block.bytes())
    }

    fn is_retired(&self, block: BlockId) -> bool {
        self.streams.uses().is_retired(block)
    }

    fn device_ordinal(&self) -> usize {
        self.streams.device().ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.streams.id()
    }

    fn usage(&self) -> Usage {
        self.adopted().usage()
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.streams.device().refuse_fork()?;
        self.adopted().free_closed(Patience::Poll)
    }

    /// Does not wait for the device: the streams of the slices do.
    fn reap_pending(&self) -> ResourceResult<u64> {
        self.streams.device().refuse_fork()?;
        self.adopted().free_closed(Patience::Wait)
    }

    fn trim_to(&self, _: u64) -> ResourceResult<u64> {
        self.try_reap()
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        Some(&*self.streams)
    }
}

/// `CudaSlices(device 0)`.
impl fmt::Display for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaSlices(device {})", self.device_ordinal())
    }
}

impl fmt::Debug for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
