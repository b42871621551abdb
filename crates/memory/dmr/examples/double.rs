//! A kernel that reads what another stream has loaded: declared, launched, and freed in order.
//!
//! `cargo run -p dmr --example double`. In a program of your own it needs the feature `nvrtc`.

#![allow(unsafe_code, reason = "a kernel launch")]
#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use std::error::Error;

use dmr::cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use dmr::cudarc::nvrtc::Ptx;
use dmr::prelude::*;
use dmr_sim::{Driver, Universe};

/// `y[i] = 2 * x[i]`, for `n` elements.
const PTX: &str = "
.version 7.0
.target sm_50
.address_size 64
.visible .entry twice(.param .u64 x, .param .u64 y, .param .u32 n) {
    .reg .pred %past;
    .reg .b32 %i, %n, %threads, %block;
    .reg .f32 %value;
    .reg .b64 %x, %y, %at;
    ld.param.u64 %x, [x];
    ld.param.u64 %y, [y];
    ld.param.u32 %n, [n];
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %block, %threads, %i;
    setp.ge.u32 %past, %i, %n;
    @%past bra done;
    mul.wide.u32 %at, %i, 4;
    add.u64 %x, %x, %at;
    add.u64 %y, %y, %at;
    ld.global.f32 %value, [%x];
    add.f32 %value, %value, %value;
    st.global.f32 [%y], %value;
done:
    ret;
}";

fn main() -> Result<(), Box<dyn Error>> {
    let simulated = match dmr_sim::select()? {
        Driver::Simulated(_) => Some(Universe::new()?),
        _ => None,
    };
    let ordinal = simulated.as_ref().map_or(0, |universe| universe.ordinal(0));
    let gpu = DeviceRuntime::builder(ordinal).build()?;
    let twice = gpu.device().context().load_module(Ptx::from_src(PTX))?.load_function("twice")?;

    let host: Vec<f32> = (0..100_000).map(|i| i as f32).collect();
    let doubled = double(&gpu, &twice, &host)?;
    let right = doubled.iter().zip(&host).filter(|(y, x)| **y == **x * 2.0).count();
    println!("{right} of {} elements are right", host.len());
    if let Some(universe) = simulated {
        println!("{} races", universe.reports().len());
    }
    Ok(())
}

fn double(
    gpu: &DeviceRuntime,
    twice: &CudaFunction,
    host: &[f32],
) -> Result<Vec<f32>, Box<dyn Error>> {
    let load = gpu.streams().acquire()?;
    let compute = gpu.streams().acquire()?;
    let x = DeviceBuffer::from_host(gpu, &load, host)?;
    let mut y = DeviceBuffer::<f32>::zeroed(gpu, &compute, x.len())?;

    let mut launch = LaunchRecorder::new_strict(&compute);
    let from = launch.read(&x);
    let to = launch.write(&mut y);
    let n = x.len() as u32;
    // SAFETY: the kernel takes two addresses and a count, and stays inside both buffers.
    launch.launch(gpu, |stream| unsafe {
        let config = LaunchConfig::for_num_elems(n);
        stream.launch_builder(twice).arg(&from).arg(&to).arg(&n).launch(config)
    })?;
    drop(x);
    Ok(y.to_host(&compute)?)
}
