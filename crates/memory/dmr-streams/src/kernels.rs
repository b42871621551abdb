//! The two kernels of [`PatternOps`](crate::PatternOps), and the results buffer of the checks.

use std::ffi::{CStr, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaStream, sys};
use dmr_core::ResourceResult;
use dmr_recorder::hooks::HostWait;

use crate::{Device, StreamGuard};

/// The number of checks that can be submitted before their results must be fetched.
pub(crate) const RESULT_SLOTS: usize = 1 << 16;

/// The result of a check that has found no wrong byte.
pub(crate) const NOTHING_WRONG: u64 = u64::MAX;

const PTX: &str = concat!(include_str!("kernels.ptx"), "\0");
const RESULT_BYTES: usize = RESULT_SLOTS * size_of::<u64>();
/// The bytes that a thread of a check compares at a time.
const STEP: u64 = 16;
/// The most threads of a block.
const THREADS: u64 = 256;
/// Enough to fill any GPU; the kernel strides over larger ranges.
const MAX_BLOCKS: u64 = 4096;

/// A check of device memory against a pattern.
pub(crate) struct PatternCheck {
    pub(crate) ptr: u64,
    pub(crate) bytes: u64,
    /// Repeated from `ptr` on.
    pub(crate) pattern: u32,
    /// The index of the result.
    pub(crate) slot: usize,
}

/// The loaded module and a buffer with a 64-bit result per check, on the device.
pub(crate) struct Kernels {
    device: Device,
    /// A private stream: a user's stream may be capturing a graph when results are fetched.
    stream: Arc<CudaStream>,
    module: sys::CUmodule,
    check: sys::CUfunction,
    spin: sys::CUfunction,
    results: sys::CUdeviceptr,
}

// SAFETY: the handles belong to the context and may be used from any thread where it is current.
// Shared references change only device memory, in the order of streams.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Compiles the kernels and makes the results buffer, with [`NOTHING_WRONG`] in all slots.
    pub(crate) fn load(device: &Device, stream: Arc<CudaStream>) -> ResourceResult<Self> {
        let failed = |call| move |error| device.driver_error(call, error);
        let kernels = device.relaxed(|_| {
            // SAFETY: PTX text that ends with a zero byte.
            let module = unsafe { result::module::load_data(PTX.as_ptr().cast()) }
                .map_err(failed("cuModuleLoadData"))?;
            let null = std::ptr::null_mut();
            let device = device.clone();
            let mut kernels = Self { device, stream, module, check: null, spin: null, results: 0 };
            kernels.check = kernels.function(c"dmr_check_pattern")?;
            kernels.spin = kernels.function(c"dmr_spin")?;
            // SAFETY: the context is current; `drop` frees it.
            kernels.results =
                unsafe { result::malloc_sync(RESULT_BYTES) }.map_err(failed("cuMemAlloc"))?;
            Ok(kernels)
        })?;
        kernels.reset()?;
        Ok(kernels)
    }

    /// Submits a check.
    ///
    /// # Safety
    ///
    /// The range is device memory that stays allocated until the check is done.
    pub(crate) unsafe fn check(
        &self,
        stream: &StreamGuard<'_>,
        check: PatternCheck,
    ) -> ResourceResult<()> {
        let PatternCheck { mut ptr, mut bytes, mut pattern, slot } = check;
        debug_assert!(slot < RESULT_SLOTS);
        let mut result = self.results + (slot * size_of::<u64>()) as u64;
        let steps = bytes.div_ceil(STEP);
        let blocks = steps.div_ceil(THREADS).clamp(1, MAX_BLOCKS) as c_uint;
        let threads = steps.next_multiple_of(32).clamp(32, THREADS) as c_uint;
        let parameters = &mut [
            (&raw mut ptr).cast(),
            (&raw mut bytes).cast(),
            (&raw mut pattern).cast(),
            (&raw mut result).cast(),
        ];
        // SAFETY: the parameters are those of the kernel, which reads the range (the caller's
        // obligation) and updates one word of the results.
        unsafe { self.launch(self.check, blocks, threads, stream, parameters) }
    }

    /// Keeps a stream busy.
    pub(crate) fn spin(
        &self,
        stream: &StreamGuard<'_>,
        mut nanoseconds: u64,
    ) -> ResourceResult<()> {
        // SAFETY: the parameter is that of the kernel, which touches no memory.
        unsafe { self.launch(self.spin, 1, 1, stream, &mut [(&raw mut nanoseconds).cast()]) }
    }

    /// Sets all results to [`NOTHING_WRONG`], and waits until they are set.
    pub(crate) fn reset(&self) -> ResourceResult<()> {
        // SAFETY: `load` allocated the buffer with this size, and no check is in flight.
        let reset = |on| unsafe { result::memset_d8_async(self.results, 0xFF, RESULT_BYTES, on) };
        self.synchronously("cuMemsetD8Async", reset)
    }

    /// Fetches the first `count` results. Their checks must have completed.
    pub(crate) fn fetch(&self, count: usize) -> ResourceResult<Vec<u64>> {
        let mut fetched = vec![NOTHING_WRONG; count.min(RESULT_SLOTS)];
        // SAFETY: the results buffer is at least this long. The destination outlives the copy: a
        // copy to pageable memory has ended when the call returns.
        let fetch = |on| unsafe { result::memcpy_dtoh_async(&mut fetched, self.results, on) };
        self.synchronously("cuMemcpyDtoHAsync", fetch)?;
        Ok(fetched)
    }

    /// Submits work to the private stream with this driver call, and waits for it.
    fn synchronously(
        &self,
        call: &'static str,
        submit: impl FnOnce(sys::CUstream) -> Result<(), DriverError>,
    ) -> ResourceResult<()> {
        let device = &self.device;
        let stream = self.stream.cu_stream();
        device.relaxed(|_| {
            submit(stream).map_err(|error| device.driver_error(call, error))?;
            let _waiting = HostWait::for_device(device.ordinal());
            // SAFETY: the stream is alive as long as `self`.
            unsafe { result::stream::synchronize(stream) }
                .map_err(|error| device.driver_error("cuStreamSynchronize", error))
        })
    }

    fn function(&self, name: &'static CStr) -> ResourceResult<sys::CUfunction> {
        // SAFETY: the module is loaded.
        unsafe { result::module::get_function(self.module, name.to_owned()) }
            .map_err(|error| self.device.driver_error("cuModuleGetFunction", error))
    }

    /// Launches a kernel.
    ///
    /// # Safety
    ///
    /// As for `cuLaunchKernel`: the parameters are those of the function.
    unsafe fn launch(
        &self,
        function: sys::CUfunction,
        blocks: c_uint,
        threads: c_uint,
        stream: &StreamGuard<'_>,
        parameters: &mut [*mut c_void],
    ) -> ResourceResult<()> {
        self.device.bind()?;
        let grid = (blocks, 1, 1);
        let block = (threads, 1, 1);
        let on = stream.cudarc_stream().cu_stream();
        // SAFETY: the caller's obligation; the stream is alive while there is a guard.
        unsafe { result::launch_kernel(function, grid, block, 0, on, parameters) }
            .map_err(|error| self.device.driver_error("cuLaunchKernel", error))
    }
}

impl Drop for Kernels {
    /// Frees the results and unloads the module. None of its kernels is running.
    fn drop(&mut self) {
        // What cannot be freed is leaked.
        let _ = self.device.relaxed(|_| {
            if self.results != 0 {
                // SAFETY: allocated by `load`, and no kernel uses it.
                let _: Result<(), DriverError> = unsafe { result::free_sync(self.results) };
            }
            // SAFETY: loaded by `load`, and none of its kernels is running.
            let _: Result<(), DriverError> = unsafe { result::module::unload(self.module) };
            Ok(())
        });
    }
}
