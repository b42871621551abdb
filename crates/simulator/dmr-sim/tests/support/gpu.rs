//! Driver calls as the tests make them: one device of a universe, through unmodified cudarc.
//!
//! The functions are safe to call here although the driver's own are not: the simulated driver
//! checks every handle and every address, and returns an error or reports a wrong one.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::{CString, c_void};
use std::mem::MaybeUninit;

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUevent, CUfunction, CUmemoryPool, CUstream};
use cudarc::driver::{DriverError, result};
use dmr_sim::{Report, ReportKind, Universe};

pub(crate) type Driver<T> = Result<T, DriverError>;

/// Returns the driver's number of an error.
pub(crate) fn code<T>(returned: Driver<T>) -> Option<i32> {
    returned.err().map(|error| error.0 as i32)
}

/// A universe and its first device, current on this thread.
pub(crate) fn machine() -> (Universe, Gpu) {
    let universe = Universe::new().expect("the simulator installs");
    let gpu = Gpu::new(&universe);
    (universe, gpu)
}

/// The first device of the driver that this process uses, current on this thread; and its universe,
/// if it has one.
pub(crate) fn device() -> (Option<Universe>, Gpu) {
    match dmr_sim::select().expect("a driver") {
        dmr_sim::Driver::Cuda => (None, Gpu::on(0)),
        dmr_sim::Driver::Simulated(_) => {
            let (universe, gpu) = machine();
            (Some(universe), gpu)
        }
    }
}

/// Returns the findings of a universe so far.
pub(crate) fn kinds(universe: &Universe) -> Vec<ReportKind> {
    universe.reports().iter().map(|report: &Report| report.kind).collect()
}

/// One device's primary context, current on the thread that made it.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) device: CUdevice,
    pub(crate) context: CUcontext,
}

// SAFETY: a context handle may be used by any thread; the simulator, like the driver, locks the
// context.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// The legacy NULL stream.
pub(crate) const LEGACY: CUstream = std::ptr::null_mut();

impl Gpu {
    /// The universe's first device.
    pub(crate) fn new(universe: &Universe) -> Gpu {
        Gpu::of(universe, 0)
    }

    pub(crate) fn of(universe: &Universe, device: usize) -> Gpu {
        Gpu::on(universe.ordinal(device))
    }

    /// The device with this CUDA ordinal.
    pub(crate) fn on(ordinal: usize) -> Gpu {
        result::init().expect("cuInit");
        let device = result::device::get(ordinal as i32).expect("cuDeviceGet");
        // SAFETY: the device is the driver's own; the context is released when this is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.expect("retain");
        let gpu = Gpu { device, context };
        gpu.bind();
        gpu
    }

    /// Makes the context current on this thread.
    pub(crate) fn bind(&self) {
        // SAFETY: the context is retained for as long as this lives.
        unsafe { result::ctx::set_current(self.context) }.expect("cuCtxSetCurrent");
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained once in `of`. An error means that the universe has ended already.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

macro_rules! call {
    ($($call:tt)*) => {
        // SAFETY: the simulated driver checks its arguments; out-parameters point to live locals.
        unsafe { sys::$($call)* }.result()
    };
}

/// A stream that does not order with the legacy one.
pub(crate) fn stream() -> CUstream {
    result::stream::create(result::stream::StreamKind::NonBlocking).expect("cuStreamCreate")
}

/// A stream that orders with the legacy one.
pub(crate) fn blocking_stream() -> CUstream {
    result::stream::create(result::stream::StreamKind::Default).expect("cuStreamCreate")
}

pub(crate) fn destroy_stream(stream: CUstream) -> Driver<()> {
    call!(cuStreamDestroy_v2(stream))
}

pub(crate) fn event() -> CUevent {
    result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).expect("cuEventCreate")
}

pub(crate) fn destroy_event(event: CUevent) -> Driver<()> {
    call!(cuEventDestroy_v2(event))
}

pub(crate) fn record(event: CUevent, stream: CUstream) -> Driver<()> {
    call!(cuEventRecord(event, stream))
}

pub(crate) fn wait(stream: CUstream, event: CUevent) -> Driver<()> {
    call!(cuStreamWaitEvent(stream, event, 0))
}

/// Makes `later` wait for all work submitted to `earlier` so far.
pub(crate) fn order(earlier: CUstream, later: CUstream) {
    let event = event();
    record(event, earlier).expect("cuEventRecord");
    wait(later, event).expect("cuStreamWaitEvent");
    destroy_event(event).expect("cuEventDestroy");
}

pub(crate) fn sync(stream: CUstream) -> Driver<()> {
    call!(cuStreamSynchronize(stream))
}

pub(crate) fn sync_event(event: CUevent) -> Driver<()> {
    call!(cuEventSynchronize(event))
}

pub(crate) fn sync_context() -> Driver<()> {
    result::ctx::synchronize()
}

/// Returns whether all work is done; an error other than "not ready" panics.
pub(crate) fn query(stream: CUstream) -> bool {
    ready(call!(cuStreamQuery(stream)))
}

/// Returns whether the event has completed; an error other than "not ready" panics.
pub(crate) fn query_event(event: CUevent) -> bool {
    ready(call!(cuEventQuery(event)))
}

fn ready(returned: Driver<()>) -> bool {
    match returned {
        Ok(()) => true,
        Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => false,
        Err(error) => panic!("query: {error:?}"),
    }
}

/// `cuMemAlloc`.
pub(crate) fn malloc(bytes: usize) -> Driver<u64> {
    let mut address = 0;
    call!(cuMemAlloc_v2(&mut address, bytes))?;
    Ok(address)
}

/// `cuMemFree`.
pub(crate) fn free(address: u64) -> Driver<()> {
    call!(cuMemFree_v2(address))
}

/// `cuMemAllocAsync`, from the device's current pool.
pub(crate) fn malloc_async(bytes: usize, stream: CUstream) -> Driver<u64> {
    let mut address = 0;
    call!(cuMemAllocAsync(&mut address, bytes, stream))?;
    Ok(address)
}

/// `cuMemAllocFromPoolAsync`.
pub(crate) fn malloc_from(pool: CUmemoryPool, bytes: usize, stream: CUstream) -> Driver<u64> {
    let mut address = 0;
    call!(cuMemAllocFromPoolAsync(&mut address, bytes, pool, stream))?;
    Ok(address)
}

/// `cuMemFreeAsync`.
pub(crate) fn free_async(address: u64, stream: CUstream) -> Driver<()> {
    call!(cuMemFreeAsync(address, stream))
}

/// `cuMemsetD8Async`.
pub(crate) fn fill(address: u64, byte: u8, bytes: usize, stream: CUstream) -> Driver<()> {
    call!(cuMemsetD8Async(address, byte, bytes, stream))
}

/// `cuMemcpyDtoDAsync`.
pub(crate) fn copy(dst: u64, src: u64, bytes: usize, stream: CUstream) -> Driver<()> {
    call!(cuMemcpyDtoDAsync_v2(dst, src, bytes, stream))
}

/// `cuMemcpyAsync`: between any two addresses.
pub(crate) fn copy_any(dst: u64, src: u64, bytes: usize, stream: CUstream) -> Driver<()> {
    call!(cuMemcpyAsync(dst, src, bytes, stream))
}

/// `cuMemcpyHtoDAsync`.
pub(crate) fn upload(dst: u64, src: &[u8], stream: CUstream) -> Driver<()> {
    call!(cuMemcpyHtoDAsync_v2(dst, src.as_ptr().cast(), src.len(), stream))
}

/// `cuMemcpyDtoHAsync`.
pub(crate) fn download(dst: &mut [u8], src: u64, stream: CUstream) -> Driver<()> {
    call!(cuMemcpyDtoHAsync_v2(dst.as_mut_ptr().cast(), src, dst.len(), stream))
}

/// `cuMemcpyDtoH`, the synchronous copy, on the legacy stream.
pub(crate) fn read(src: u64, bytes: usize) -> Driver<Vec<u8>> {
    let mut dst = vec![0; bytes];
    call!(cuMemcpyDtoH_v2(dst.as_mut_ptr().cast(), src, bytes))?;
    Ok(dst)
}

/// A pool of the device with every kind of reuse on, as the driver makes it.
pub(crate) fn pool(device: CUdevice) -> CUmemoryPool {
    // The fields in question are at the same place in every version; the bindings give them
    // different types.
    #[repr(C)]
    struct Head {
        pinned: i32,
        handle_types: i32,
        location_device: i32,
        location_id: i32,
    }
    let mut props = MaybeUninit::<sys::CUmemPoolProps>::zeroed();
    let head = Head { pinned: 1, handle_types: 0, location_device: 1, location_id: device };
    // SAFETY: the properties are larger than their head, and plain data for which zero is valid.
    unsafe { props.as_mut_ptr().cast::<Head>().write_unaligned(head) };
    let mut pool = std::ptr::null_mut();
    call!(cuMemPoolCreate(&mut pool, props.as_ptr())).expect("cuMemPoolCreate");
    pool
}

pub(crate) fn default_pool(device: CUdevice) -> CUmemoryPool {
    let mut pool = std::ptr::null_mut();
    call!(cuDeviceGetDefaultMemPool(&mut pool, device)).expect("cuDeviceGetDefaultMemPool");
    pool
}

pub(crate) fn destroy_pool(pool: CUmemoryPool) -> Driver<()> {
    call!(cuMemPoolDestroy(pool))
}

pub(crate) fn trim(pool: CUmemoryPool, keep: usize) -> Driver<()> {
    call!(cuMemPoolTrimTo(pool, keep))
}

/// A pool attribute; switches are 32 bits wide, sizes 64.
pub(crate) fn pool_get(pool: CUmemoryPool, attribute: sys::CUmemPool_attribute) -> u64 {
    let mut value = 0u64;
    call!(cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()))
        .expect("cuMemPoolGetAttribute");
    value
}

pub(crate) fn pool_set(pool: CUmemoryPool, attribute: sys::CUmemPool_attribute, mut value: u64) {
    call!(cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()))
        .expect("cuMemPoolSetAttribute");
}

/// Page-locked host memory, freed when dropped.
#[derive(Debug)]
pub(crate) struct Pinned {
    start: *mut u8,
    len: usize,
}

impl Pinned {
    pub(crate) fn new(len: usize) -> Pinned {
        let mut start = std::ptr::null_mut();
        call!(cuMemHostAlloc(&mut start, len, 0)).expect("cuMemHostAlloc");
        let pinned = Pinned { start: start.cast(), len };
        // SAFETY: fresh memory of this size.
        unsafe { pinned.start.write_bytes(0, len) };
        pinned
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    /// Returns its bytes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: initialised in `new`. The simulated device works inside of driver calls only, and
        // these programs call from one thread: nothing writes here while the slice is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    pub(crate) fn upload(
        &self,
        dst: u64,
        offset: usize,
        len: usize,
        stream: CUstream,
    ) -> Driver<()> {
        assert!(offset + len <= self.len);
        // SAFETY: inside the memory, asserted above.
        let src: *const c_void = unsafe { self.start.add(offset) }.cast();
        call!(cuMemcpyHtoDAsync_v2(dst, src, len, stream))
    }

    pub(crate) fn download(
        &self,
        offset: usize,
        len: usize,
        src: u64,
        stream: CUstream,
    ) -> Driver<()> {
        assert!(offset + len <= self.len);
        // SAFETY: inside the memory, asserted above.
        let dst: *mut c_void = unsafe { self.start.add(offset) }.cast();
        call!(cuMemcpyDtoHAsync_v2(dst, src, len, stream))
    }
}

// SAFETY: the memory is its own; it may be freed by any thread.
unsafe impl Send for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        call!(cuMemFreeHost(self.start.cast())).expect("cuMemFreeHost");
    }
}

/// Loads a module and finds one of its kernels.
pub(crate) fn kernel(ptx: &str, name: &str) -> Driver<CUfunction> {
    let image = CString::new(ptx).expect("PTX has no NUL inside");
    let name = CString::new(name).expect("a name has no NUL inside");
    // SAFETY: the image is NUL-terminated text; the module lives as long as its context.
    let module = unsafe { result::module::load_data(image.as_ptr().cast()) }?;
    // SAFETY: the module was loaded above.
    unsafe { result::module::get_function(module, name) }
}

/// Returns PTX with an entry of this name and parameters, and no code, which the simulator does not
/// need.
pub(crate) fn ptx(name: &str, parameters: &[&str]) -> String {
    let parameters: Vec<String> = parameters
        .iter()
        .enumerate()
        .map(|(index, kind)| format!("\t.param .{kind} {name}_param_{index}"))
        .collect();
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n\n.visible .entry {name}(\n{}\n)\n{{\n\tret;\n}}\n",
        parameters.join(",\n")
    )
}

/// Launches one thread of a kernel whose parameters are all 64 bits wide.
pub(crate) fn launch(kernel: CUfunction, arguments: &[u64], stream: CUstream) -> Driver<()> {
    launch_threads(kernel, 1, 1, arguments, stream)
}

/// Launches a grid of a kernel whose parameters are all 64 bits wide.
pub(crate) fn launch_threads(
    kernel: CUfunction,
    blocks: u32,
    threads: u32,
    arguments: &[u64],
    stream: CUstream,
) -> Driver<()> {
    let mut values = arguments.to_vec();
    let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|v| (&raw mut *v).cast()).collect();
    call!(cuLaunchKernel(
        kernel,
        blocks,
        1,
        1,
        threads,
        1,
        1,
        0,
        stream,
        pointers.as_mut_ptr(),
        std::ptr::null_mut()
    ))
}
