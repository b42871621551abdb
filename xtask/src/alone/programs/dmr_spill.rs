//! `dmr-spill` alone: a buffer that goes to the host and comes back.

use std::sync::Arc;

use dmr_buffer::DeviceBuffer;
use dmr_buffer::pinned::reap_pinned;
use dmr_core::DeviceMemoryResource;
use dmr_cuda_direct::DirectCudaResource;
use dmr_sim::Universe;
use dmr_spill::Spill;
use dmr_streams::{Device, DeviceContext, StreamPool, StreamPoolConfig, Tracked};

struct Context {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
}

impl DeviceContext for Context {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

fn main() {
    let universe = Universe::new().unwrap();
    let device = Device::open(universe.ordinal(0)).unwrap();
    let streams = StreamPool::new(device, StreamPoolConfig::new()).unwrap();
    let direct = DirectCudaResource::new(Arc::clone(&streams));
    let resource = Arc::new(Tracked::new(direct, Arc::clone(&streams)).unwrap());
    let context = Context { resource, streams };
    let stream = context.streams.acquire().unwrap();

    let spill = Spill::new(&context.streams).unwrap();
    let buffer = DeviceBuffer::from_host(&context, &stream, &[1_u32, 2, 3]).unwrap();
    let buffer = spill.insert(buffer).unwrap();
    assert_eq!(spill.free(1).unwrap(), 12);
    assert!(buffer.is_spilled());
    assert_eq!(buffer.on_device(&stream).unwrap().to_host(&stream).unwrap(), [1, 2, 3]);

    drop((buffer, spill, stream));
    context.resource.reap_pending().unwrap();
    reap_pinned(&context).unwrap();
    drop(context);
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}
