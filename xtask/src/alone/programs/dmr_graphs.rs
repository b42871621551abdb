//! `dmr-graphs` alone: a graph that declares what it writes, launched twice.
#![allow(unsafe_code, reason = "the driver's fill takes a device address")]

use std::sync::Arc;

use cudarc::driver::result;
use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_graphs::{CaptureMode, Graph};
use dmr_sim::Universe;
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
    let tag = AllocTag::new("alone");
    let mut block = context.resource.allocate(1000, stream.id(), tag).unwrap();

    let work = |capture: &mut dmr_graphs::Capture<'_>| {
        let target = capture.write(&mut block).device_ptr();
        // SAFETY: the block has 1000 bytes, and its use is recorded.
        unsafe { result::memset_d8_async(target, 1, 1000, capture.stream().handle().cast()) }
    };
    // SAFETY: the work uses the block that it records.
    let graph = unsafe { Graph::capture(&context, &stream, CaptureMode::default(), work) }.unwrap();
    graph.launch(&stream).unwrap();
    graph.launch(&stream).unwrap();
    drop(graph);

    context.resource.deallocate(block).unwrap();
    context.resource.reap_pending().unwrap();
    drop((stream, context));
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}
