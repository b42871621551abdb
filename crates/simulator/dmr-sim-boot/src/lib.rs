//! Runs the CUDA calls of this process on the simulated driver of [`dmr_sim`], and reports their
//! races at the exit.
//!
//! One line in a test or a program, and no other change:
//!
//! ```
//! use dmr_sim_boot as _;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gpu = cudarc::driver::CudaContext::new(0)?; // cudarc, unmodified
//! let stream = gpu.default_stream();
//! let zeros = stream.alloc_zeros::<u32>(4)?;
//! assert_eq!(stream.clone_dtoh(&zeros)?, [0; 4]);
//! # Ok(())
//! # }
//! ```
//!
//! Before `main` it selects the driver as [`dmr_sim::select`] does: NVIDIA's, if there is a GPU,
//! otherwise the simulated one; `DMR_DRIVER=sim` and `DMR_DRIVER=cuda` choose. With the simulated
//! driver [`dmr_sim::boot`] makes the devices, and names the environment variables that configure
//! them. When the process exits, its findings are written to the standard error, and the exit
//! status is [`dmr_sim::EXIT_STATUS`], 66.
//!
//! Looking for a GPU initialises NVIDIA's driver before `main`: a program that forks and uses CUDA
//! in the child only needs `DMR_DRIVER=sim`, or no boot.

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "a function that runs before `main`")]

use std::io::Write;

/// The dynamic linker calls it after it has loaded the program, before `main`.
// SAFETY: the section holds pointers to functions of this type.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

extern "C" fn before_main() {
    // A panic may not leave a function that C calls.
    let result = std::panic::catch_unwind(dmr_sim::boot);
    let message = match result {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the simulated driver panicked".to_owned(),
    };
    let _ = writeln!(std::io::stderr(), "dmr-sim-boot: {message}");
}
