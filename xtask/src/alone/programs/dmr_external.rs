//! `dmr-external` alone: memory of the driver is adopted, and its owner dropped after the last use.
#![allow(unsafe_code, reason = "adopts memory of the driver")]

use std::sync::Arc;
use std::sync::mpsc;

use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_external::{ForeignBlocks, ForeignMemory, Ready};
use dmr_sim::Universe;
use dmr_streams::{Device, DeviceContext, StreamPool, StreamPoolConfig};

/// The streams are all that adopted memory needs of a context.
struct Streams(Arc<StreamPool>);

impl DeviceContext for Streams {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        unreachable!("adopted memory has a resource of its own")
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.0
    }
}

/// A slice of cudarc, and a channel that is closed when it is dropped.
type Owner = (cudarc::driver::CudaSlice<u8>, mpsc::Sender<()>);

fn main() {
    let universe = Universe::new().unwrap();
    let device = Device::open(universe.ordinal(0)).unwrap();
    let context = Streams(StreamPool::new(device, StreamPoolConfig::new()).unwrap());
    let home = context.0.acquire().unwrap();
    let slice = home.stream().alloc_zeros::<u8>(64).unwrap();
    let ptr = cudarc::driver::DevicePtr::device_ptr(&slice, home.stream()).0;
    let (is_alive, dropped) = mpsc::channel();
    let owner: Owner = (slice, is_alive);
    let blocks = ForeignBlocks::of(&context);
    let memory = ForeignMemory::new(ptr, 64, owner);
    let ready = Ready::Stream(home.stream().cu_stream().cast());
    // SAFETY: the slice has these bytes, and its work is that of its stream.
    let block = unsafe { blocks.adopt(memory, home.id(), ready, AllocTag::UNTAGGED) }.unwrap();
    blocks.resource().deallocate(block).unwrap();
    assert!(dropped.recv().is_err(), "the owner is dropped");
    drop((blocks, home, context));
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}
