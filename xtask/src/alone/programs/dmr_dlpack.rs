//! `dmr-dlpack` alone: a tensor is exported, and imported again.
#![allow(unsafe_code, reason = "imports a tensor by its address")]

use std::sync::Arc;

use dmr_buffer::DeviceBuffer;
use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_dlpack::dlpark::ffi::DLManagedTensorVersioned;
use dmr_dlpack::{Consumer, Tensor, import};
use dmr_external::Ready;
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
    let home = context.streams.acquire().unwrap();
    let buffer = DeviceBuffer::from_host(&context, &home, &[1_u32, 2, 3]).unwrap();
    let tensor = Tensor::of(buffer, &[3]).unwrap();
    let consumer = Consumer::Stream(home.id());
    let exported = tensor.export::<DLManagedTensorVersioned>(consumer).unwrap();
    let ready = Ready::Stream(exported.stream);
    let raw = exported.tensor.into_raw();
    // SAFETY: just exported, and not used by another consumer.
    let back = unsafe { import(&context, &home, raw, ready, AllocTag::UNTAGGED) }.unwrap();
    assert_eq!(back.into_column::<u32>().unwrap().to_host(&home).unwrap(), [1, 2, 3]);
    drop((tensor, home, context));
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}
