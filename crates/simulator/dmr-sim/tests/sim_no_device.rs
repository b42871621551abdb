//! Without a universe the simulated driver is a machine without a device.
//!
//! A process of its own: any other test's universe would be a device.

use cudarc::driver::{CudaContext, result, sys};
use dmr_sim::Universe;

#[test]
fn without_a_universe_there_is_no_device() {
    dmr_sim::install().unwrap();
    let no_device = sys::CUresult::CUDA_ERROR_NO_DEVICE;
    assert_eq!(result::init().unwrap_err().0, no_device);
    assert_eq!(CudaContext::new(0).unwrap_err().0, no_device);
    let universe = Universe::new().unwrap();
    let ordinal = universe.ordinal(0);
    result::init().unwrap();
    CudaContext::new(ordinal).unwrap();
    drop(universe);
    assert!(CudaContext::new(ordinal).is_err());
    assert_eq!(result::init().unwrap_err().0, no_device);
}
