//! The harness of the conformance suite around a resource.

use dmr_core::conformance::Harness;
use dmr_core::{DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceResult, StreamId};
use dmr_streams::{StreamLease, StreamPool, StreamPoolConfig};

use crate::Rig;

/// A [`Harness`] on a [`Rig`], around a new resource that works on the rig's streams.
#[derive(Debug)]
pub struct ResourceHarness<R> {
    // Fields are dropped in this order: the rig last.
    resource: R,
    streams: [StreamLease; 2],
    foreign: StreamId,
    returned: StreamId,
    rig: Rig,
}

impl<R: DeviceMemoryResource> ResourceHarness<R> {
    /// Makes a harness around the resource that `make` returns.
    pub fn new(rig: Rig, make: impl FnOnce(&Rig) -> R) -> Self {
        let resource = make(&rig);
        let streams = [rig.stream(), rig.stream()];
        let returned = rig.stream().id();
        let config = StreamPoolConfig::new().with_max_streams(1);
        let other = StreamPool::new(rig.device().clone(), config).expect("another stream pool");
        Self { resource, streams, foreign: other.default_stream(), returned, rig }
    }

    /// Returns the rig that it runs on.
    pub fn rig(&self) -> &Rig {
        &self.rig
    }
}

impl<R: DeviceMemoryResource> Harness for ResourceHarness<R> {
    fn resource(&self) -> &dyn DeviceMemoryResource {
        &self.resource
    }

    fn streams(&self) -> [StreamId; 2] {
        let [a, b] = &self.streams;
        [a.id(), b.id()]
    }

    fn foreign_stream(&self) -> StreamId {
        self.foreign
    }

    fn returned_stream(&self) -> StreamId {
        self.returned
    }

    fn device_bytes(&self) -> u64 {
        self.rig.device().total_memory()
    }

    fn fill(&self, stream: StreamId, block: &DeviceBlock, byte: u8) -> ResourceResult<()> {
        self.rig.ops().fill_pattern(block, 0..block.bytes(), word(byte), stream)
    }

    fn check(
        &self,
        stream: StreamId,
        block: &DeviceBlock,
        byte: u8,
    ) -> ResourceResult<Option<usize>> {
        let ops = self.rig.ops();
        ops.check_pattern(block, 0..block.bytes(), word(byte), stream, 0)?;
        Ok(ops.collect()?.first().map(|mismatch| mismatch.offset))
    }

    fn delay(&self, stream: StreamId) -> ResourceResult<()> {
        self.rig.ops().delay(stream, 20_000_000)
    }

    fn synchronize(&self) -> ResourceResult<()> {
        self.rig.device().synchronize()
    }

    fn verdict(&self) -> Result<(), String> {
        self.rig.verdict()
    }
}

fn word(byte: u8) -> u32 {
    u32::from_le_bytes([byte; 4])
}
