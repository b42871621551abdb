//! A runtime of the C interface on a simulated device, with the calls as methods.

use std::ffi::{CString, c_char, c_void};
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;

use dmr::cudarc::driver::{CudaContext, CudaStream, result};
use dmr::dmr_streams::Device;
use dmr_capi::*;
use dmr_testkit::Rig;

pub(crate) const MIB: usize = 1 << 20;

/// The calls of a runtime.
pub(crate) struct Calls {
    pub(crate) handle: *mut RuntimeHandle,
    device: Device,
}

// SAFETY: the handle is a number, and any thread may call any function.
unsafe impl Sync for Calls {}

/// A runtime of its own on a simulated device.
pub(crate) struct Gpu {
    calls: Calls,
    pub(crate) rig: Rig,
}

impl Deref for Gpu {
    type Target = Calls;

    fn deref(&self) -> &Calls {
        &self.calls
    }
}

/// A `CUstream`.
pub(crate) type Raw = *mut c_void;

/// The handle of the legacy default stream.
pub(crate) const LEGACY: Raw = ptr::null_mut();

impl Gpu {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::on(Rig::simulated(), change)
    }

    pub(crate) fn on(rig: Rig, change: impl FnOnce(&mut Config)) -> Self {
        Self { calls: Calls::on(&rig, change), rig }
    }

    /// Destroys the runtime, and asserts that the machine has no finding and no memory left.
    pub(crate) fn end(self) {
        let Self { calls, rig } = self;
        assert_eq!(calls.destroy(), Ok(()), "{}", last_error());
        drop(calls);
        rig.assert_clean();
    }
}

impl Calls {
    pub(crate) fn on(rig: &Rig, change: impl FnOnce(&mut Config)) -> Self {
        let (status, handle) = create(rig, change);
        assert_eq!(status, Status::Ok, "{}", last_error());
        Self { handle, device: rig.device().clone() }
    }

    /// Makes a stream of the program.
    pub(crate) fn stream(&self) -> Arc<CudaStream> {
        stream_of(self.device.context())
    }

    pub(crate) fn allocate(&self, bytes: usize, stream: Raw) -> Result<Address, Status> {
        let mut address = 1;
        // SAFETY: the tests destroy no stream before it is retired, unless they say so.
        let status = unsafe { dmr_allocate(self.handle, bytes, stream, &mut address) };
        assert_eq!(status == Status::Ok, address != 1);
        checked(status).map(|()| address)
    }

    pub(crate) fn free(&self, address: Address) -> Result<(), Status> {
        checked(dmr_free(self.handle, address))
    }

    pub(crate) fn free_on(&self, address: Address, stream: Raw) -> Result<(), Status> {
        // SAFETY: as in `allocate`.
        checked(unsafe { dmr_free_on(self.handle, address, stream) })
    }

    pub(crate) fn record(&self, address: Address, stream: Raw, access: u32) -> Result<(), Status> {
        // SAFETY: as in `allocate`.
        checked(unsafe { dmr_record_use(self.handle, address, stream, access) })
    }

    pub(crate) fn wait(&self, address: Address, stream: Raw, access: u32) -> Result<(), Status> {
        // SAFETY: as in `allocate`.
        checked(unsafe { dmr_wait_for_uses(self.handle, address, stream, access) })
    }

    pub(crate) fn retire(&self, stream: Raw) -> Result<(), Status> {
        // SAFETY: as in `allocate`.
        checked(unsafe { dmr_stream_retire(self.handle, stream) })
    }

    pub(crate) fn destroy(&self) -> Result<(), Status> {
        checked(dmr_runtime_destroy(self.handle))
    }

    pub(crate) fn usage(&self) -> Usage {
        let mut usage = empty_usage();
        // SAFETY: the struct has the size that it says.
        let status = unsafe { dmr_runtime_usage(self.handle, &mut usage) };
        assert_eq!(status, Status::Ok, "{}", last_error());
        usage
    }

    /// Returns the addresses of the live blocks.
    pub(crate) fn live(&self) -> Vec<Address> {
        let mut count = 0;
        let size = size_of::<Block>();
        // SAFETY: no block is written.
        let status =
            unsafe { dmr_runtime_snapshot(self.handle, ptr::null_mut(), size, 0, &mut count) };
        assert_eq!(status, Status::Ok, "{}", last_error());
        let mut blocks: Vec<Block> = Vec::with_capacity(count);
        // SAFETY: there is room for that number of blocks.
        let status = unsafe {
            dmr_runtime_snapshot(self.handle, blocks.as_mut_ptr(), size, count, &mut count)
        };
        assert_eq!(status, Status::Ok, "{}", last_error());
        assert!(count <= blocks.capacity());
        // SAFETY: as many were written.
        unsafe { blocks.set_len(count) };
        blocks.iter().map(|block| block.address).collect()
    }

    /// Submits a write to the block.
    pub(crate) fn fill(&self, address: Address, bytes: usize, stream: Raw) {
        self.fill_with(7, address, bytes, stream);
    }

    /// Submits a write of this value to the block.
    pub(crate) fn fill_with(&self, value: u8, address: Address, bytes: usize, stream: Raw) {
        self.try_fill(value, address, bytes, stream).unwrap();
    }

    pub(crate) fn try_fill(
        &self,
        value: u8,
        address: Address,
        bytes: usize,
        stream: Raw,
    ) -> Result<(), Status> {
        self.device.bind().map_err(|_| Status::Driver)?;
        // SAFETY: the block has these bytes, unless the test is of a finding.
        unsafe { result::memset_d8_async(address, value, bytes, stream.cast()) }
            .map_err(|_| Status::Driver)
    }

    /// Copies the block to the host.
    pub(crate) fn content(&self, address: Address, bytes: usize, stream: Raw) -> Vec<u8> {
        self.device.bind().unwrap();
        let mut host = vec![0; bytes];
        // SAFETY: as in `fill_with`; the host waits for the copy.
        unsafe { result::memcpy_dtoh_async(&mut host, address, stream.cast()) }.unwrap();
        // SAFETY: the stream was not destroyed.
        unsafe { result::stream::synchronize(stream.cast()) }.unwrap();
        host
    }

    pub(crate) fn create_spillable(
        &self,
        bytes: usize,
        stream: Raw,
    ) -> Result<*mut SpillableHandle, Status> {
        let mut handle = ptr::null_mut();
        let tag = c"spillable".as_ptr();
        // SAFETY: as in `allocate`.
        let status = unsafe { dmr_spillable_create(self.handle, bytes, stream, tag, &mut handle) };
        checked(status).map(|()| handle)
    }

    pub(crate) fn pin(&self, buffer: *mut SpillableHandle, stream: Raw) -> Result<Address, Status> {
        let mut address = 0;
        // SAFETY: as in `allocate`.
        checked(unsafe { dmr_spillable_pin(self.handle, buffer, stream, &mut address) })?;
        Ok(address)
    }

    pub(crate) fn unpin(&self, buffer: *mut SpillableHandle) -> Result<(), Status> {
        checked(dmr_spillable_unpin(self.handle, buffer))
    }

    pub(crate) fn destroy_spillable(&self, buffer: *mut SpillableHandle) -> Result<(), Status> {
        checked(dmr_spillable_destroy(self.handle, buffer))
    }

    /// Submits a read of the block: a copy to another block.
    pub(crate) fn read(&self, address: Address, bytes: usize, stream: Raw) {
        let to = self.allocate(bytes, stream).unwrap();
        self.device.bind().unwrap();
        // SAFETY: as in `fill`.
        unsafe { result::memcpy_dtod_async(to, address, bytes, stream.cast()) }.unwrap();
        self.free(to).unwrap();
    }
}

/// Makes a runtime on the rig's device.
pub(crate) fn create(rig: &Rig, change: impl FnOnce(&mut Config)) -> (Status, *mut RuntimeHandle) {
    let mut config = default_config();
    config.device = rig.ordinal() as u32;
    change(&mut config);
    let mut handle = ptr::null_mut();
    // SAFETY: the struct has the size that it says, and the tests set strings that end with a NUL.
    let status = unsafe { dmr_runtime_create(&config, &mut handle) };
    (status, handle)
}

pub(crate) fn default_config() -> Config {
    let mut config = std::mem::MaybeUninit::<Config>::uninit();
    // SAFETY: the struct has that size.
    let status = unsafe { dmr_config_init(config.as_mut_ptr(), size_of::<Config>()) };
    assert_eq!(status, Status::Ok);
    // SAFETY: the function has written it.
    unsafe { config.assume_init() }
}

pub(crate) fn empty_usage() -> Usage {
    Usage {
        size: size_of::<Usage>() as u32,
        version: DMR_USAGE_VERSION,
        live: 0,
        retired: 0,
        reserved: 0,
        total_allocated: 0,
        total_freed: 0,
        limit: 0,
        remaining: 0,
        spilled: 0,
    }
}

pub(crate) fn stream_of(context: &Arc<CudaContext>) -> Arc<CudaStream> {
    context.new_stream().unwrap()
}

pub(crate) fn raw(stream: &CudaStream) -> Raw {
    stream.cu_stream().cast()
}

pub(crate) fn checked(status: Status) -> Result<(), Status> {
    if status == Status::Ok { Ok(()) } else { Err(status) }
}

/// Returns the text of the thread's last error.
pub(crate) fn last_error() -> String {
    // SAFETY: nothing is written.
    let bytes = unsafe { dmr_last_error(ptr::null_mut(), 0) };
    let mut text = vec![0_u8; bytes + 1];
    // SAFETY: the buffer has these bytes.
    let again = unsafe { dmr_last_error(text.as_mut_ptr().cast::<c_char>(), text.len()) };
    assert_eq!(again, bytes);
    CString::from_vec_with_nul(text).unwrap().into_string().unwrap()
}
