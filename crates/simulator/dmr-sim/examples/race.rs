//! A program with a race: a copy reads what a kernel on another stream still writes.
//!
//! `DMR_DRIVER=sim DMR_SIM_REPORT=race.csv DMR_SIM_BACKTRACE=1 cargo run -p dmr-sim --example race`
//! ends with status 66, and `dmr report race.csv` shows the wait that is missing.

#![allow(unsafe_code, reason = "launches a kernel")]

use std::error::Error;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

const SCALE: &str = ".version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x) {
    .reg .b32 %i, %value;
    .reg .b64 %x;
    mov.u32 %i, %tid.x;
    ld.param.u64 %x, [x];
    mad.wide.u32 %x, %i, 4, %x;
    ld.global.u32 %value, [%x];
    add.u32 %value, %value, %value;
    st.global.u32 [%x], %value;
    ret;
}";

fn main() -> Result<(), Box<dyn Error>> {
    dmr_sim::boot()?;
    let gpu = CudaContext::new(0)?;
    // SAFETY: the streams are ordered by hand, but for one wait, which is what is reported.
    unsafe { gpu.disable_event_tracking() };
    let compute = gpu.new_stream()?;
    let copy = gpu.new_stream()?;
    let kernel = gpu.load_module(Ptx::from_src(SCALE))?.load_function("scale")?;
    let mut batch = compute.clone_htod(&[1_u32; 32])?;
    copy.join(&compute)?;
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel accesses one number for each of 32 threads.
    unsafe { compute.launch_builder(&kernel).arg(&mut batch).launch(config) }?;
    // Missing here: `copy.join(&compute)`.
    let result = copy.clone_dtoh(&batch)?;
    copy.synchronize()?;
    compute.synchronize()?;
    assert_eq!(result.len(), 32);
    Ok(())
}
