//! A device in host memory, with streams that do as little as they may, and a resource on it.

mod device;
mod fault;
mod resource;
mod tracking;

use std::sync::{Arc, Mutex};

use dmr_core::conformance::Harness;
use dmr_core::{
    DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult, StreamId, StreamPoolId,
};

use device::{Device, Op};
pub(crate) use fault::Fault;
use resource::FakeResource;

/// Bytes of the device.
const DEVICE_BYTES: usize = 16 << 20;

/// Where the device's memory starts.
const BASE: u64 = 0x7000_0000;

/// Slots of the streams that the pool has: the default stream and two others.
const STREAMS: usize = 3;

/// A resource on a device of its own.
pub(crate) struct FakeHarness {
    device: Arc<Mutex<Device>>,
    resource: FakeResource,
    pool: StreamPoolId,
    other_pool: StreamPoolId,
}

impl FakeHarness {
    /// A correct resource.
    pub(crate) fn new(tracks: bool) -> Self {
        Self::broken(tracks, None)
    }

    /// A resource that is correct but for one fault.
    pub(crate) fn broken(tracks: bool, fault: Option<Fault>) -> Self {
        let device = Arc::new(Mutex::new(Device::new(DEVICE_BYTES, STREAMS)));
        let pool = StreamPoolId::next().unwrap();
        let other_pool = StreamPoolId::next().unwrap();
        let resource = FakeResource::new(device.clone(), pool, tracks, fault);
        Self { device, resource, pool, other_pool }
    }
}

/// Streams are leased once; lease 0 is over.
fn leased(pool: StreamPoolId, slot: usize) -> StreamId {
    StreamId::from_parts(pool, slot, 1).unwrap()
}

impl Harness for FakeHarness {
    fn resource(&self) -> &dyn DeviceMemoryResource {
        &self.resource
    }

    fn streams(&self) -> [StreamId; 2] {
        [leased(self.pool, 1), leased(self.pool, 2)]
    }

    fn foreign_stream(&self) -> StreamId {
        leased(self.other_pool, 1)
    }

    fn returned_stream(&self) -> StreamId {
        StreamId::from_parts(self.pool, 1, 0).unwrap()
    }

    fn device_bytes(&self) -> u64 {
        DEVICE_BYTES as u64
    }

    fn fill(&self, stream: StreamId, block: &DeviceBlock, byte: u8) -> ResourceResult<()> {
        let at = offset(block)?;
        let fill = Op::Fill { at, len: block.bytes(), byte };
        self.device.lock().unwrap().submit(stream.slot(), fill);
        Ok(())
    }

    fn check(
        &self,
        stream: StreamId,
        block: &DeviceBlock,
        byte: u8,
    ) -> ResourceResult<Option<usize>> {
        let at = offset(block)?;
        let mut device = self.device.lock().unwrap();
        let now = device.record(stream.slot());
        device.run_until(now);
        Ok(device.memory()[at..at + block.bytes()].iter().position(|b| *b != byte))
    }

    fn delay(&self, stream: StreamId) -> ResourceResult<()> {
        self.device.lock().unwrap().submit(stream.slot(), Op::Delay);
        Ok(())
    }

    fn settle(&self) -> ResourceResult<()> {
        self.device.lock().unwrap().run_all();
        Ok(())
    }

    /// Streams run as late as they may, so what is not ordered shows in the bytes.
    fn verdict(&self) -> Result<(), String> {
        Ok(())
    }
}

fn offset(block: &DeviceBlock) -> ResourceResult<usize> {
    let at = block.ptr().wrapping_sub(BASE) as usize;
    let inside = at.checked_add(block.bytes()).is_some_and(|end| end <= DEVICE_BYTES);
    if inside { Ok(at) } else { Err(ResourceError::out_of_bounds(block, 0, block.bytes())) }
}
