//! `dmr-sim-boot` alone: one line, and cudarc finds a device.

use dmr_sim_boot as _;

fn main() {
    let gpu = cudarc::driver::CudaContext::new(0).unwrap();
    assert_eq!(gpu.default_stream().alloc_zeros::<u8>(8).unwrap().len(), 8);
}
