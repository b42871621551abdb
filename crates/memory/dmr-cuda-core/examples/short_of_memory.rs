//! Allocates and drops 600 MiB 100 times where there is room for one: how often the allocation
//! fails with cuda-core's memory, with cuda-async's and with dmr's. Fails if one of dmr's does.
//!
//! The device has 1 GiB: the simulator's by `DMR_SIM_CAPACITY=1073741824`; on a larger one, such as
//! a GPU, the program first allocates all but 1 GiB.
#![allow(clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use cuda_async::device_box::DeviceBox;
use cuda_async::device_operation::{DeviceOp, ExecutionContext, value, with_context};
use dmr::prelude::*;

const MIB: usize = 1 << 20;

/// The memory that the loops have.
const ROOM: usize = 1024 * MIB;

const BYTES: usize = 600 * MIB;

const TIMES: usize = 100;

/// Long enough for the frees of cuda-core's worker, which belong to the loop before.
const PAUSE: Duration = Duration::from_millis(500);

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let context = cuda_core::Context::new(0).map_err(failed)?;
    let stream = context.new_stream().map_err(failed)?;
    let ballast = ballast()?;
    println!("{TIMES} times {} MiB in {} MiB, one at a time:", BYTES / MIB, free_bytes()? / MIB);

    // First: a pool of cuda-async keeps memory, and no call of it returns that.
    let gpu = DeviceRuntime::try_get(0)?;
    let lease = gpu.streams().acquire()?;
    let ours = count(|| DeviceBuffer::<u8>::zeroed(gpu, &lease, BYTES).map(drop).is_err());
    report("dmr: DeviceBuffer::zeroed", ours);
    gpu.resource().reap_pending()?;
    gpu.resource().trim_to(0)?;

    let zeroed = || cuda_core::DeviceBuffer::<u8>::zeroed(&stream, BYTES).map(drop).is_err();
    report("cuda-core: DeviceBuffer::zeroed", count(zeroed));
    report("cuda-async: ExecutionContext::alloc_async", count(|| is_refused(&stream)));
    drop(ballast);
    Ok(if ours == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(what: &str, failures: usize) {
    println!("{what:42} {failures:3} failed");
}

/// Returns how many of the allocations were refused.
fn count(mut is_refused: impl FnMut() -> bool) -> usize {
    let refused = (0..TIMES).filter(|_| is_refused()).count();
    sleep(PAUSE);
    refused
}

/// Allocates on the stream, as cuTile's tensors do, and frees; returns whether it was refused.
fn is_refused(stream: &Arc<cuda_core::Stream>) -> bool {
    let allocate = with_context(|context: &ExecutionContext| {
        // SAFETY: the memory is used by no work, and freed on this stream.
        let ptr = unsafe { context.alloc_async(BYTES) };
        let stream = Arc::clone(context.get_cuda_stream());
        // SAFETY: it was just allocated on this stream.
        value(ptr.map(|ptr| unsafe { DeviceBox::<[u8]>::from_raw_parts(ptr, BYTES, stream) }))
    });
    !matches!(allocate.sync_on(stream), Ok(Ok(_)))
}

/// Allocates what the device has beyond [`ROOM`].
fn ballast() -> Result<Option<Ballast>, Box<dyn Error>> {
    let bytes = free_bytes()?.saturating_sub(ROOM);
    if bytes == 0 {
        return Ok(None);
    }
    let mut ptr = 0;
    // SAFETY: a context is current; the driver writes one address.
    check(unsafe { cuda_core::sys::cuMemAlloc_v2(&mut ptr, bytes) })?;
    Ok(Some(Ballast(ptr)))
}

/// Memory that no loop can have.
struct Ballast(cuda_core::sys::CUdeviceptr);

impl Drop for Ballast {
    fn drop(&mut self) {
        // SAFETY: from `cuMemAlloc`, and used by no work.
        let _ = unsafe { cuda_core::sys::cuMemFree_v2(self.0) };
    }
}

fn free_bytes() -> Result<usize, Box<dyn Error>> {
    let mut free = 0;
    let mut total = 0;
    // SAFETY: a context is current; the driver writes two numbers.
    check(unsafe { cuda_core::sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
    Ok(free)
}

fn check(code: cuda_core::sys::CUresult) -> Result<(), Box<dyn Error>> {
    if code == cuda_core::sys::cudaError_enum_CUDA_SUCCESS { Ok(()) } else { Err(failed(code)) }
}

fn failed(error: impl std::fmt::Debug) -> Box<dyn Error> {
    format!("{error:?}").into()
}
