//! The kernels that commit faults, under names of the caller's choice.

#![allow(unsafe_code, reason = "kernels that commit faults")]

use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

/// Threads of the kernels that use shared memory: two warps.
const THREADS: u32 = 64;

/// Bytes that [`Faults::race`] and [`Faults::divergent`] write.
pub const OUT_BYTES: usize = 4 * THREADS as usize;

/// The kernels, loaded in one context. Each launch may commit a fault, so each is `unsafe`.
#[derive(Debug)]
pub struct Faults {
    write: CudaFunction,
    read: CudaFunction,
    race: CudaFunction,
    divergent: CudaFunction,
}

impl Faults {
    /// Compiles the kernels; their names start with `prefix`.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn load(context: &Arc<CudaContext>, prefix: &str) -> Result<Self, DriverError> {
        let text = include_str!("faults.ptx").replace("PREFIX", prefix);
        let module = context.load_module(Ptx::from_src(text))?;
        let function = |name| module.load_function(&format!("{prefix}_{name}"));
        Ok(Self {
            write: function("write")?,
            read: function("read")?,
            race: function("race")?,
            divergent: function("divergent")?,
        })
    }

    /// Submits a kernel that writes 1 to each of `bytes` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// Either the range is device memory that this work may write, or the process only commits this
    /// fault and computes nothing from device memory afterwards.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub unsafe fn write(
        &self,
        stream: &Arc<CudaStream>,
        ptr: u64,
        bytes: u32,
    ) -> Result<(), DriverError> {
        let mut launch = stream.launch_builder(&self.write);
        launch.arg(&ptr).arg(&bytes);
        // SAFETY: as the caller promises; the arguments are those of the kernel.
        unsafe { launch.launch(LaunchConfig::for_num_elems(bytes)) }.map(drop)
    }

    /// Submits a kernel that reads `bytes` bytes at `ptr`, and adds to the 32-bit word at `sum`.
    ///
    /// # Safety
    ///
    /// As for [`write`](Self::write); `sum` is device memory that was written.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub unsafe fn read(
        &self,
        stream: &Arc<CudaStream>,
        ptr: u64,
        bytes: u32,
        sum: u64,
    ) -> Result<(), DriverError> {
        let mut launch = stream.launch_builder(&self.read);
        launch.arg(&ptr).arg(&bytes).arg(&sum);
        // SAFETY: as the caller promises; the arguments are those of the kernel.
        unsafe { launch.launch(LaunchConfig::for_num_elems(bytes)) }.map(drop)
    }

    /// Submits a kernel whose threads read shared memory that other threads write, unordered.
    ///
    /// # Safety
    ///
    /// `out` is device memory of [`OUT_BYTES`] bytes that this work may write.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub unsafe fn race(&self, stream: &Arc<CudaStream>, out: u64) -> Result<(), DriverError> {
        // SAFETY: as the caller promises.
        unsafe { Self::launch_block(&self.race, stream, out) }
    }

    /// Submits a kernel with a barrier that only one thread of a block reaches.
    ///
    /// # Safety
    ///
    /// As for [`race`](Self::race).
    ///
    /// # Errors
    ///
    /// The driver's.
    pub unsafe fn divergent(&self, stream: &Arc<CudaStream>, out: u64) -> Result<(), DriverError> {
        // SAFETY: as the caller promises.
        unsafe { Self::launch_block(&self.divergent, stream, out) }
    }

    /// # Safety
    ///
    /// As for [`race`](Self::race).
    unsafe fn launch_block(
        function: &CudaFunction,
        stream: &Arc<CudaStream>,
        out: u64,
    ) -> Result<(), DriverError> {
        let config =
            LaunchConfig { grid_dim: (1, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        let mut launch = stream.launch_builder(function);
        launch.arg(&out);
        // SAFETY: as the caller promises; the argument is that of the kernel.
        unsafe { launch.launch(config) }.map(drop)
    }
}
