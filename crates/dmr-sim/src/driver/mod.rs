//! The driver's functions, one file per chapter of the CUDA Driver API manual.
//!
//! Each is an `extern "C"` function of the driver's name and type. Functions that are not simulated return
//! `CUDA_ERROR_NOT_SUPPORTED`.

#![allow(non_snake_case, reason = "the driver's names")]

mod capture;
mod carved;
mod context;
mod event;
mod execution;
mod memory;
mod module;
mod peer;
mod pool;
mod stream;
mod stream_memory;
mod virtual_memory;

use std::ffi::c_int;

pub use capture::{is_capture_mode_global, reset_capture_mode};

use crate::abi::{ERROR_INVALID_VALUE, ERROR_NOT_SUPPORTED, Outcome};

/// Every symbol and its address.
pub(crate) fn symbols() -> Vec<(&'static str, u64)> {
    let chapters = [
        context::SYMBOLS,
        stream::SYMBOLS,
        event::SYMBOLS,
        memory::SYMBOLS,
        pool::SYMBOLS,
        peer::SYMBOLS,
        module::SYMBOLS,
        execution::SYMBOLS,
        capture::SYMBOLS,
        virtual_memory::SYMBOLS,
        stream_memory::SYMBOLS,
        carved::SYMBOLS,
    ];
    let simulated = chapters.into_iter().flatten();
    let mut all: Vec<_> = simulated.map(|(name, address)| (*name, address() as u64)).collect();
    let refused = not_supported as extern "C" fn() -> c_int as usize as u64;
    all.extend(NOT_SUPPORTED.iter().map(|name| (*name, refused)));
    all
}

/// A symbol, and a function that returns its address (which is no constant).
type Symbol = (&'static str, fn() -> usize);

/// Lists functions with their names: `chapter![cuInit, cuDeviceGet]`.
macro_rules! chapter {
    ($($name:ident),* $(,)?) => {
        /// The symbols of this chapter.
        pub(super) const SYMBOLS: &[super::Symbol] =
            &[$((stringify!($name), || $name as *const () as usize)),*];
    };
}
use chapter;

/// Functions that cudarc's driver layers refer to, or that belong to a simulated chapter, and that are not
/// simulated. cudarc panics on a missing symbol, so each is present and returns an error.
const NOT_SUPPORTED: &[&str] = &[
    "cuDestroyExternalMemory",
    "cuExternalMemoryGetMappedBuffer",
    "cuGraphClone",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuImportExternalMemory",
    "cuLaunchCooperativeKernel",
    "cuMemAdvise",
    "cuMemAdvise_v2",
    "cuMemAllocManaged",
    "cuMemImportFromShareableHandle",
    "cuMemMapArrayAsync",
    "cuMemPrefetchAsync",
    "cuMemPrefetchAsync_v2",
    "cuOccupancyAvailableDynamicSMemPerBlock",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
    "cuOccupancyMaxActiveClusters",
    "cuOccupancyMaxPotentialBlockSize",
    "cuOccupancyMaxPotentialBlockSizeWithFlags",
    "cuOccupancyMaxPotentialClusterSize",
    "cuProfilerStart",
    "cuProfilerStop",
    "cuStreamAttachMemAsync",
];

/// The implementation of all of them: on the platforms of the simulator, the caller of a C function
/// removes its arguments, so their number and types have no effect.
extern "C" fn not_supported() -> c_int {
    ERROR_NOT_SUPPORTED
}

/// Refuses a call without a pointer for its result, before it has any effect.
fn required<T>(to: *mut T) -> Outcome {
    if to.is_null() { Err(ERROR_INVALID_VALUE) } else { Ok(()) }
}

/// Writes a result to the caller's pointer.
///
/// # Safety
///
/// `to` is null, or valid for writing a `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Outcome {
    required(to)?;
    // SAFETY: not null, so valid by this function's contract.
    unsafe { to.write_unaligned(value) };
    Ok(())
}
