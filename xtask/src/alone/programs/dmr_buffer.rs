//! `dmr-buffer` alone: a buffer over a resource, with `derive` one of structs, with `cudarc` one of
//! a slice.

use std::sync::Arc;

use dmr_buffer::DeviceBuffer;
use dmr_core::DeviceMemoryResource;
use dmr_cuda_direct::DirectCudaResource;
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

#[cfg(feature = "derive")]
#[derive(Clone, Copy, Debug, PartialEq, dmr_buffer::Pod, dmr_buffer::Zeroable)]
#[bytemuck(crate = "dmr_buffer::bytemuck")]
#[repr(C)]
struct Particle {
    position: [f32; 3],
    mass: f32,
}

fn main() {
    let universe = Universe::new().unwrap();
    let device = Device::open(universe.ordinal(0)).unwrap();
    let streams = StreamPool::new(device, StreamPoolConfig::new()).unwrap();
    let resource = Arc::new(DirectCudaResource::new(Arc::clone(&streams)));
    let context = Context { resource, streams };
    let stream = context.streams.acquire().unwrap();
    let numbers = DeviceBuffer::from_host(&context, &stream, &[1.0_f32, 2.0]).unwrap();
    assert_eq!(numbers.to_host(&stream).unwrap(), [1.0, 2.0]);
    drop(numbers);
    #[cfg(feature = "derive")]
    {
        let particle = Particle { position: [1.0, 2.0, 3.0], mass: 4.0 };
        let particles = DeviceBuffer::from_host(&context, &stream, &[particle]).unwrap();
        assert_eq!(particles.to_host(&stream).unwrap(), [particle]);
    }
    #[cfg(feature = "cudarc")]
    {
        let slice = stream.stream().clone_htod(&[3_u32, 4]).unwrap();
        let adopted = DeviceBuffer::adopt(&context, &stream, slice).unwrap();
        assert_eq!(adopted.to_host(&stream).unwrap(), [3, 4]);
    }
    context.resource.reap_pending().unwrap();
    drop((stream, context));
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}
