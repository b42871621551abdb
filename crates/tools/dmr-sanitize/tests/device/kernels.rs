//! The kernels of the device tests.

#![allow(unsafe_code, reason = "kernel launches")]

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use dmr_streams::{Device, KernelArg};

/// Threads of a block, and words of a sum.
pub(crate) const BLOCK: u32 = 256;

/// The kernels, loaded in the context of one device.
#[derive(Debug)]
pub(crate) struct Kernels {
    add: CudaFunction,
    sum: CudaFunction,
}

impl Kernels {
    pub(crate) fn load(device: &Device) -> Result<Self, DriverError> {
        let module = device.context().load_module(Ptx::from_src(include_str!("kernels.ptx")))?;
        Ok(Self { add: module.load_function("dmr_add")?, sum: module.load_function("dmr_sum")? })
    }

    /// Submits: each byte of `to` becomes that of `from` plus `number`.
    ///
    /// # Safety
    ///
    /// Both are device memory of `bytes` bytes that this work may use.
    pub(crate) unsafe fn add(
        &self,
        stream: &Arc<CudaStream>,
        (from, to): (KernelArg, KernelArg),
        bytes: usize,
        number: u8,
    ) -> Result<(), DriverError> {
        let bytes = bytes as u32;
        let number = u32::from(number);
        let mut launch = stream.launch_builder(&self.add);
        launch.arg(&from).arg(&to).arg(&bytes).arg(&number);
        // SAFETY: as the caller promises; the arguments are those of the kernel.
        unsafe { launch.launch(LaunchConfig::for_num_elems(bytes)) }.map(drop)
    }

    /// Submits: word i of `to` becomes the sum of the [`BLOCK`] words of `from` from `BLOCK * i`
    /// on.
    ///
    /// # Safety
    ///
    /// `from` is device memory of `words` words, `to` of one word for each [`BLOCK`] of them,
    /// rounded up; this work may use both.
    pub(crate) unsafe fn sum(
        &self,
        stream: &Arc<CudaStream>,
        (from, to): (KernelArg, KernelArg),
        words: usize,
    ) -> Result<(), DriverError> {
        let words = words as u32;
        let config = LaunchConfig {
            grid_dim: (words.div_ceil(BLOCK), 1, 1),
            block_dim: (BLOCK, 1, 1),
            shared_mem_bytes: 0,
        };
        let mut launch = stream.launch_builder(&self.sum);
        launch.arg(&from).arg(&to).arg(&words);
        // SAFETY: as the caller promises; the arguments are those of the kernel.
        unsafe { launch.launch(config) }.map(drop)
    }
}
