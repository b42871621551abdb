//! NVTX for stream-ordered GPU memory: announces blocks, declared uses and names to an attached
//! tool.
//!
//! | function | what it does |
//! | --- | --- |
//! | [`memory_observer`] | announces heaps and blocks, so that Compute Sanitizer sees each block of a pool |
//! | [`restricted`], [`unrestricted`] | restricts the kernels of a launch to its declared uses, or lifts that restriction; Compute Sanitizer reports other accesses |
//! | [`range`], [`name_stream`] | name work and streams on the timeline of Nsight Systems |
//!
//! The tool is the library that `NVTX_INJECTION64_PATH` names, as for every program with NVTX;
//! Compute Sanitizer and Nsight set that variable. The first call of a process looks for it.
//! Without a tool a later call costs one load and a comparison. `docs/src/driver-facts.md` of the
//! project lists what Compute Sanitizer was measured to accept and to report.
//!
//! The ABI is that of NVTX 3: `nvToolsExtMem.h`, `nvtxExtTypes.h` and `nvtxTypes.h`, which are
//! Apache-2.0 with LLVM exception. None of their code is in here.

#![allow(unsafe_code, reason = "calls the functions of a tool")]

mod abi;
mod injection;
mod names;
mod observer;
mod permissions;
mod regions;
mod tool;

pub use names::{name_stream, range};
pub use observer::memory_observer;
pub use permissions::{restricted, unrestricted};

/// Attaches a tool by its initializer, in place of the one that the environment names: for tests
/// with a tool of their own. Returns whether a tool is attached. A process has one tool at most:
/// after a call that has looked for one, this attaches nothing.
///
/// # Safety
///
/// `initialize` is an `InitializeInjectionNvtxExtension` as NVTX's `nvtxExtInit.h` describes it: it
/// takes the address of an `nvtxExtModuleInfo_t`.
#[doc(hidden)]
pub unsafe fn attach(
    initialize: unsafe extern "C" fn(*mut std::ffi::c_void) -> std::ffi::c_int,
) -> bool {
    // SAFETY: the argument of an initializer is a pointer to this structure; a function that takes
    // another pointer type is called the same way.
    unsafe {
        tool::attach(std::mem::transmute::<*const (), abi::Initialize>(initialize as *const ()))
    }
}
