//! `dmr-slices` alone: a slice of cudarc becomes a block, and is a slice again.
#![allow(unsafe_code, reason = "gives a block back as a slice of any type")]

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_sim::Universe;
use dmr_slices::CudaSlices;
use dmr_streams::{Device, DeviceContext, StreamPool, StreamPoolConfig};

/// The streams are all that adopted slices need of a context.
struct Streams(Arc<StreamPool>);

impl DeviceContext for Streams {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        unreachable!("slices have a resource of their own")
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.0
    }
}

fn main() {
    let universe = Universe::new().unwrap();
    let device = Device::open(universe.ordinal(0)).unwrap();
    let context = Streams(StreamPool::new(device, StreamPoolConfig::new()).unwrap());
    let home = context.0.acquire().unwrap();
    let slices = CudaSlices::of(&context);
    let slice = home.stream().clone_htod(&[1_u32, 2, 3]).unwrap();
    let block = slices.adopt(slice, home.id(), AllocTag::UNTAGGED).unwrap();
    // SAFETY: any bytes are numbers.
    let slice = unsafe { slices.give_back::<u32>(block, 3) }.unwrap();
    assert_eq!(home.stream().clone_dtoh(&slice).unwrap(), [1, 2, 3]);
    drop((slice, slices, home, context));
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}
