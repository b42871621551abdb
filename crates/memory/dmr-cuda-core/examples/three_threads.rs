//! Three threads add to one buffer on two streams: how often a use is refused with cuda-core's
//! leases, and with launches of dmr on the same streams. Fails if one of dmr's is, or if an
//! addition is lost.
#![allow(clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use cuda_async::device_operation::DeviceOp;
use cuda_async::launch::AsyncKernelLaunchBuilder;
use cuda_core::{CudaFunction, DriverError, LaunchConfig};
use dmr::prelude::*;
use dmr_cuda_core::AdoptedStream;
use dmr_streams::TrackedMemory;

const N: usize = 1 << 12;

const THREADS: usize = 3;

/// Additions of each thread.
const TIMES: usize = 60;

/// Adds 1 to each of `n` numbers.
const ADD: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 p, .param .u32 n)
{
  .reg .pred %q;
  .reg .b32 %r<7>;
  .reg .b64 %a<3>;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  ld.param.u32 %r5, [n];
  setp.ge.u32 %q, %r4, %r5;
  @%q bra DONE;
  ld.param.u64 %a1, [p];
  cvta.to.global.u64 %a1, %a1;
  mul.wide.u32 %a2, %r4, 4;
  add.s64 %a1, %a1, %a2;
  ld.global.u32 %r6, [%a1];
  add.u32 %r6, %r6, 1;
  st.global.u32 [%a1], %r6;
DONE:
  ret;
}
";

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<ExitCode> {
    let gpu = DeviceRuntime::try_get(0)?;
    let context = cuda_core::Context::new(0).map_err(failed)?;
    let module = context.load_module_from_ptx_src(ADD).map_err(failed)?;
    let add = module.load_function("add").map_err(failed)?;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let stream = context.new_stream().map_err(failed)?;
        streams.push(AdoptedStream::new(gpu.streams(), stream)?);
    }
    let uses = THREADS * TIMES;
    println!("{THREADS} threads on {} streams, {uses} uses of one buffer:", streams.len());
    let theirs = with_leases(&add, &streams)?;
    println!("cuda-core's leases  {theirs:6} uses refused, and tried again");
    let ours = with_launches(gpu, &add, &streams)?;
    println!("dmr's launches      {ours:6} uses refused");
    Ok(if ours == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Adds by operations of cuda-async that retain the buffer; returns how often one was refused.
fn with_leases(add: &cuda_core::Function, streams: &[AdoptedStream]) -> Outcome<usize> {
    let first = streams[0].stream();
    let buffer = cuda_core::DeviceBuffer::<u32>::zeroed(first, N).map_err(failed)?;
    first.synchronize().map_err(failed)?;
    let storage = buffer.storage().clone();
    let refused = on_threads(|index| {
        let mut launch = AsyncKernelLaunchBuilder::new(Arc::new(add.clone()) as Arc<CudaFunction>);
        launch.retain_buffer(storage.clone(), true);
        launch.push_arg(storage.cu_deviceptr()).push_arg(N as u32);
        let config = LaunchConfig {
            grid_dim: ((N as u32).div_ceil(128), 1, 1),
            block_dim: (128, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the kernel takes an address and a count, and stays inside the buffer.
        let launch = unsafe { launch.finalize_unchecked(config) };
        launch.sync_on(streams[index].stream()).is_ok()
    });
    for stream in streams {
        stream.stream().synchronize().map_err(failed)?;
    }
    check(&buffer.to_host_vec(first).map_err(failed)?)?;
    Ok(refused)
}

/// Adds by launches of dmr; returns how often one was refused.
fn with_launches(
    gpu: &DeviceRuntime,
    add: &cuda_core::Function,
    streams: &[AdoptedStream],
) -> Outcome<usize> {
    let lease = gpu.streams().acquire()?;
    // For the borrow: a launch takes the buffer as `&mut`. The device's work is not waited for.
    let buffer = Mutex::new(DeviceBuffer::<u32>::zeroed(gpu, &lease, N)?);
    let refused = on_threads(|index| {
        let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = &streams[index];
        let mut launch = LaunchRecorder::new_strict(stream);
        let _ = launch.read_write(&mut *buffer);
        let ptr = buffer.device_ptr();
        launch.launch(gpu, |_| submit(add, stream.stream(), ptr)).is_ok()
    });
    let buffer = buffer.into_inner().unwrap_or_else(PoisonError::into_inner);
    check(&buffer.to_host(&lease)?)?;
    Ok(refused)
}

/// Makes all uses on three threads, on one stream after the other; returns how often one was
/// refused.
fn on_threads(use_on: impl Fn(usize) -> bool + Sync) -> usize {
    let refused = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let use_on = &use_on;
            let refused = &refused;
            scope.spawn(move || {
                for round in 0..TIMES {
                    while !use_on((thread + round) % 2) {
                        refused.fetch_add(1, Ordering::Relaxed);
                        thread::yield_now();
                    }
                }
            });
        }
    });
    refused.into_inner()
}

fn submit(
    add: &cuda_core::Function,
    stream: &cuda_core::Stream,
    mut ptr: u64,
) -> Result<(), DriverError> {
    let mut n = N as u32;
    let mut params = [(&raw mut ptr).cast(), (&raw mut n).cast()];
    let grid = ((N as u32).div_ceil(128), 1, 1);
    // SAFETY: the two parameters of the kernel, which stays inside the buffer.
    unsafe { cuda_core::launch_kernel_on_stream(add, grid, (128, 1, 1), 0, stream, &mut params) }
}

fn check(numbers: &[u32]) -> Outcome {
    let expected = (THREADS * TIMES) as u32;
    match numbers.iter().find(|&&number| number != expected) {
        None => Ok(()),
        Some(number) => Err(format!("an addition was lost: {number}, not {expected}").into()),
    }
}

fn failed(error: impl std::fmt::Debug) -> Box<dyn Error> {
    format!("{error:?}").into()
}
