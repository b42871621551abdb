//! `dmr-external` alone: memory of the driver is adopted, and its owner dropped after the last use.
#![allow(unsafe_code, reason = "adopts memory of the driver")]

use std::sync::Arc;
use std::sync::mpsc;

use cudarc::driver::result;
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

/// Memory of the driver, and a channel that is closed when it is dropped.
struct Owner {
    ptr: u64,
    _is_alive: mpsc::Sender<()>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: from `cuMemAlloc`, and freed once.
        unsafe { result::free_sync(self.ptr) }.unwrap();
    }
}

fn main() {
    let universe = Universe::new().unwrap();
    let device = Device::open(universe.ordinal(0)).unwrap();
    let context = Streams(StreamPool::new(device, StreamPoolConfig::new()).unwrap());
    let home = context.0.acquire().unwrap();
    // SAFETY: a context is current.
    let ptr = unsafe { result::malloc_sync(64) }.unwrap();
    let (is_alive, dropped) = mpsc::channel();
    let owner = Owner { ptr, _is_alive: is_alive };
    let blocks = ForeignBlocks::of(&context);
    let memory = ForeignMemory::new(ptr, 64, owner);
    let ready = Ready::Stream(home.handle());
    // SAFETY: the allocation has these bytes, and its work is that of this stream.
    let block = unsafe { blocks.adopt(memory, home.id(), ready, AllocTag::UNTAGGED) }.unwrap();
    blocks.resource().deallocate(block).unwrap();
    assert!(dropped.recv().is_err(), "the owner is dropped");
    drop((blocks, home, context));
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}
