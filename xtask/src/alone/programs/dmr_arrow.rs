//! `dmr-arrow` alone: a column is exported, and imported again.
#![allow(unsafe_code, reason = "imports C structs")]

use std::sync::Arc;

use dmr_arrow::ArrowColumn;
use dmr_buffer::DeviceBuffer;
use dmr_core::DeviceMemoryResource;
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_sim::Universe;
use dmr_streams::{Device, DeviceContext, StreamPool, StreamPoolConfig};

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
    let resource = AsyncCudaResource::new(Arc::clone(&streams), AsyncConfig::default()).unwrap();
    let context = Context { resource: Arc::new(resource), streams };
    let home = context.streams.acquire().unwrap();
    let numbers = DeviceBuffer::from_host(&context, &home, &[1_u32, 2, 3]).unwrap();
    let exported = ArrowColumn::of("n", numbers).export(&context, &home).unwrap();
    // SAFETY: the structs are as they were exported.
    let column =
        unsafe { ArrowColumn::import(&context, &home, exported.array, exported.schema) }.unwrap();
    let values = column.values::<u32>().unwrap().unwrap().to_host(&home).unwrap();
    assert_eq!(values, [1, 2, 3]);
    drop((column, home, context));
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}
