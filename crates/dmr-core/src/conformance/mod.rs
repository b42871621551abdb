//! The contract as a suite: checks that any resource, or stack of resources, can be put through.

use crate::{DeviceBlock, DeviceMemoryResource, ResourceResult, StreamId};

/// What the suite needs around a resource: streams, device work, and a verdict.
///
/// A harness may run on a GPU, on the simulated driver, or over a fake in host memory.
pub trait Harness {
    /// The resource under test. Fresh: nothing outstanding.
    fn resource(&self) -> &dyn DeviceMemoryResource;

    /// Two different streams of the resource's pool.
    fn streams(&self) -> [StreamId; 2];

    /// A stream of another pool.
    fn foreign_stream(&self) -> StreamId;

    /// A stream of the resource's pool whose lease was returned.
    fn returned_stream(&self) -> StreamId;

    /// Bytes the device has.
    fn device_bytes(&self) -> u64;

    /// Submits work to `stream` that overwrites the whole block with `byte`.
    fn fill(&self, stream: StreamId, block: &DeviceBlock, byte: u8) -> ResourceResult<()>;

    /// Submits work to `stream` that compares the whole block with `byte`, waits for it, and
    /// answers the offset of the first byte that differs.
    fn check(
        &self,
        stream: StreamId,
        block: &DeviceBlock,
        byte: u8,
    ) -> ResourceResult<Option<usize>>;

    /// Submits work to `stream` that takes long (milliseconds on a GPU).
    fn delay(&self, stream: StreamId) -> ResourceResult<()>;

    /// Waits for all device work.
    fn settle(&self) -> ResourceResult<()>;

    /// What a race detector found so far: `Err` describes it. `Ok` where there is none.
    fn verdict(&self) -> Result<(), String>;
}
