//! Prints the seconds that kernels of a million threads take through the simulated driver, with
//! races, bounds and footprints checked; with an argument, only that kernel.

#![allow(clippy::print_stdout, reason = "a program that prints its measurement")]
#![allow(unsafe_code, reason = "the driver is called directly")]

use std::error::Error;
use std::ffi::{CString, c_void};
use std::time::Instant;

use cudarc::driver::sys::{CUdeviceptr, CUfunction};
use cudarc::driver::{CudaContext, result};
use dmr_sim::Universe;

const THREADS: u32 = 1 << 20;
const BLOCK: u32 = 256;

/// The name, the text and the blocks of each kernel.
const KERNELS: [(&str, &str, u32); 6] = [
    ("axpy", include_str!("../../dmr-ptx/examples/speed/axpy.ptx"), THREADS / BLOCK),
    ("matmul", include_str!("../../dmr-ptx/examples/speed/matmul.ptx"), THREADS / BLOCK),
    ("sort", include_str!("../../dmr-ptx/examples/speed/sort.ptx"), THREADS / BLOCK),
    ("atomics", include_str!("../../dmr-ptx/examples/speed/atomics.ptx"), THREADS / BLOCK),
    ("uniform", include_str!("../../dmr-ptx/examples/speed/uniform.ptx"), THREADS / BLOCK),
    ("empty", include_str!("../../dmr-ptx/examples/speed/axpy.ptx"), 1),
];

/// Returns the nanoseconds that the process has run on a core; `None` on other systems than Linux.
fn ran() -> Option<u64> {
    let mut all = 0;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        all += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(all)
}

fn launch(
    function: CUfunction,
    blocks: u32,
    x: CUdeviceptr,
    y: CUdeviceptr,
) -> Result<(), Box<dyn Error>> {
    let mut x = x;
    let mut y = y;
    let mut n = u64::from(THREADS);
    let mut arguments: [*mut c_void; 3] =
        [(&raw mut x).cast(), (&raw mut y).cast(), (&raw mut n).cast()];
    // SAFETY: the arguments are those of the kernel, and its pointers have 4 bytes for each thread.
    unsafe {
        let stream = std::ptr::null_mut();
        result::launch_kernel(function, (blocks, 1, 1), (BLOCK, 1, 1), 0, stream, &mut arguments)?;
    }
    result::ctx::synchronize()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let universe = Universe::new()?;
    let _context = CudaContext::new(universe.ordinal(0))?;
    let only = std::env::args().nth(1);
    for (name, text, blocks) in KERNELS {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let text = CString::new(text)?;
        // SAFETY: the text ends with a NUL, the names are those of the text, and the memory is used
        // as what it is.
        let (function, x, y) = unsafe {
            let module = result::module::load_data(text.as_ptr().cast())?;
            let function = result::module::get_function(module, CString::new("k")?)?;
            let bytes = 4 * THREADS as usize;
            let x = result::malloc_sync(bytes)?;
            let y = result::malloc_sync(bytes)?;
            result::memset_d8_sync(x, 0, bytes)?;
            result::memset_d8_sync(y, 0, bytes)?;
            (function, x, y)
        };
        let start = Instant::now();
        let before = ran();
        launch(function, blocks, x, y)?;
        let seconds = match (before, ran()) {
            (Some(before), Some(after)) => (after - before) as f64 / 1e9,
            _ => start.elapsed().as_secs_f64(),
        };
        println!("{name:10} {seconds:8.3} seconds on a core for {} threads", blocks * BLOCK);
        // SAFETY: both were allocated above, and the launch has ended.
        unsafe {
            result::free_sync(x)?;
            result::free_sync(y)?;
        }
    }
    println!("{}", universe.finish());
    Ok(())
}
