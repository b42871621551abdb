//! A device: one GPU and its CUDA context.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, OnceLock};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, sys};
use dmr_core::process::LeakedInChild;
use dmr_core::{BlockId, DeviceBlock, MemoryObserver, Process, ResourceError, ResourceResult};

use crate::adopt::Owner;
use crate::simulated::SimulatedDriver;
use crate::{DeviceError, DriverVersion, library};

pub use crate::library::device_count;

/// One GPU and the CUDA context in which everything on it is made. Cheap to clone.
///
/// # Device lost, forked child
///
/// Some driver errors are *sticky*: the context cannot be used again, and every later call returns
/// the same error. With the first one that is passed to [`driver_error`](Self::driver_error) the
/// device and all its clones are lost for good: [`bind`](Self::bind) returns
/// [`DeviceLost`](ResourceError::DeviceLost). In a process that was forked after the device was
/// opened, `bind` returns [`ForkedProcess`](ResourceError::ForkedProcess). Neither makes a driver
/// call.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    /// In a forked child cudarc would release the context, which is the parent's.
    context: LeakedInChild<Arc<CudaContext>>,
    name: String,
    total_memory: u64,
    driver_version: DriverVersion,
    /// The sticky error by which the device was lost.
    lost: OnceLock<StickyError>,
    opened_in: Process,
    simulated: Option<Arc<SimulatedDriver>>,
    /// Keeps a context of another owner alive. Dropped last.
    _owner: LeakedInChild<Option<Owner>>,
}

struct StickyError {
    /// The driver's function.
    call: &'static str,
    code: i32,
    /// The finding of the simulated driver that explains it.
    finding: Option<Arc<str>>,
}

impl StickyError {
    #[cold]
    fn lost(&self, ordinal: usize) -> ResourceError {
        ResourceError::device_lost_by(ordinal, self.call, self.code, self.finding.clone())
    }
}

impl Device {
    /// Opens the device with this CUDA ordinal, in its primary context: the one that the CUDA
    /// runtime and other libraries of the process use.
    ///
    /// # Errors
    ///
    /// No driver, a driver too old, no device, an ordinal out of range, and other driver errors:
    /// see [`DeviceError`]. Never a panic.
    pub fn open(ordinal: usize) -> Result<Self, DeviceError> {
        let count = device_count()?;
        if ordinal >= count {
            return Err(DeviceError::OrdinalOutOfRange { ordinal, count });
        }
        let context = CudaContext::new(ordinal)
            .map_err(|error| DeviceError::from_code("CudaContext::new", code(error)))?;
        Self::with_owner(context, None)
    }

    pub(crate) fn with_owner(
        context: Arc<CudaContext>,
        owner: Option<Owner>,
    ) -> Result<Self, DeviceError> {
        let driver_version = library::probe()?;
        let failed = |call| move |error| DeviceError::from_code(call, code(error));
        let cu_device = context.cu_device();
        let name = result::device::get_name(cu_device).map_err(failed("cuDeviceGetName"))?;
        // SAFETY: the context's device comes from the driver.
        let total = unsafe { result::device::total_mem(cu_device) };
        let total_memory = total.map_err(failed("cuDeviceTotalMem"))? as u64;
        let lost = OnceLock::new();
        let opened_in = Process::current();
        let simulated = SimulatedDriver::of(context.ordinal());
        let inner = Inner {
            context: LeakedInChild::new(context),
            name,
            total_memory,
            driver_version,
            lost,
            opened_in,
            simulated,
            _owner: LeakedInChild::new(owner),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Makes a device from a context of another owner by its handle (a `CUcontext`), and keeps the
    /// owner until the last clone of the device is gone: whatever destroys or releases the context
    /// when it is dropped, or `()` if the program itself sees to it. The context becomes current on
    /// the calling thread.
    ///
    /// # Errors
    ///
    /// [`DriverTooOld`](DeviceError::DriverTooOld) and [`Driver`](DeviceError::Driver).
    ///
    /// # Safety
    ///
    /// The context is alive while the owner is, and while anything is that was made with the device
    /// and outlives it, such as a stream of cudarc.
    pub unsafe fn from_raw(
        context: *mut c_void,
        owner: impl Any + Send + Sync,
    ) -> Result<Self, DeviceError> {
        library::probe()?;
        let failed = |call| move |error| DeviceError::from_code(call, code(error));
        // SAFETY: the context is alive.
        unsafe { result::ctx::set_current(context.cast()) }.map_err(failed("cuCtxSetCurrent"))?;
        let mut device = 0;
        // SAFETY: a context is current; the driver writes one number.
        unsafe { sys::cuCtxGetDevice(&mut device) }.result().map_err(failed("cuCtxGetDevice"))?;
        let is_it = |&at: &usize| result::device::get(at as i32).is_ok_and(|it| it == device);
        let ordinal = (0..device_count()?).find(is_it).unwrap_or(device as usize);
        // SAFETY: the caller's obligations; this is the device of the context.
        let wrapped = unsafe { CudaContext::from_raw_context(ordinal, device, context.cast()) };
        let wrapped = wrapped.map_err(failed("cuCtxSetCurrent"))?;
        // cudarc destroys a context with its last owner. This one has another owner.
        std::mem::forget(Arc::clone(&wrapped));
        Self::with_owner(wrapped, Some(Box::new(owner)))
    }

    /// Returns the handle of the context (a `CUcontext`).
    #[must_use]
    #[inline]
    pub fn handle(&self) -> *mut c_void {
        self.context().cu_ctx().cast()
    }

    /// Returns cudarc's context.
    #[cfg_attr(not(feature = "cudarc"), doc(hidden))]
    #[must_use]
    #[inline]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.inner.context
    }

    /// Returns the observer that is part of the driver. The simulated driver has one, and reports
    /// wrong and unordered accesses to the blocks that are reported to it, with their tags.
    /// NVIDIA's driver has none.
    #[must_use]
    pub fn memory_observer(&self) -> Option<Arc<dyn MemoryObserver>> {
        Some(Arc::clone(self.simulated()?) as Arc<dyn MemoryObserver>)
    }

    /// Returns the driver, if it is simulated.
    pub(crate) fn simulated(&self) -> Option<&Arc<SimulatedDriver>> {
        self.inner.simulated.as_ref()
    }

    /// Reports a block that is an allocation of the driver, and no part of a pool's memory, to the
    /// simulated driver, which then finds accesses that launches have not declared. Does nothing on
    /// NVIDIA's.
    #[inline]
    pub fn report_block(&self, block: &DeviceBlock) {
        if let Some(simulated) = self.simulated() {
            simulated.block_allocated(block);
        }
    }

    /// Reports to the simulated driver that the memory of a block belongs to the program from now
    /// on.
    #[inline]
    pub fn report_given_away(&self, block: BlockId) {
        if let Some(simulated) = self.simulated() {
            simulated.block_given_away(block.ptr());
        }
    }

    /// Returns the CUDA device ordinal.
    #[must_use]
    #[inline]
    pub fn ordinal(&self) -> usize {
        self.inner.context.ordinal()
    }

    /// Returns the driver's name of the device: "NVIDIA H200".
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the total bytes of device memory.
    #[must_use]
    #[inline]
    pub fn total_memory(&self) -> u64 {
        self.inner.total_memory
    }

    /// Returns the highest CUDA version that the driver supports.
    #[must_use]
    pub fn driver_version(&self) -> DriverVersion {
        self.inner.driver_version
    }

    /// Returns the identifier that no other GPU has.
    ///
    /// # Errors
    ///
    /// [`ForkedProcess`](ResourceError::ForkedProcess); [`Driver`](ResourceError::Driver).
    pub fn uuid(&self) -> ResourceResult<[u8; 16]> {
        self.refuse_fork()?;
        let uuid = result::device::get_uuid(self.context().cu_device())
            .map_err(|error| self.driver_error("cuDeviceGetUuid", error))?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// Returns the free and the total bytes of device memory.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver).
    pub fn memory_info(&self) -> ResourceResult<(u64, u64)> {
        self.bind()?;
        let (free, total) =
            result::mem_get_info().map_err(|error| self.driver_error("cuMemGetInfo", error))?;
        Ok((free as u64, total as u64))
    }

    /// Checks that the device can be used: it is not lost, and this is the process that opened it.
    /// Makes no driver call.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](ResourceError::DeviceLost) and
    /// [`ForkedProcess`](ResourceError::ForkedProcess).
    #[inline]
    pub fn check(&self) -> ResourceResult<()> {
        self.refuse_fork()?;
        match self.inner.lost.get() {
            Some(sticky) => Err(sticky.lost(self.ordinal())),
            None => Ok(()),
        }
    }

    /// Returns whether [`check`](Self::check) finds no error.
    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        self.inner.opened_in.is_current() && self.inner.lost.get().is_none()
    }

    /// Refuses a call in a process that was forked after the device was opened. Makes no driver
    /// call and takes no lock: call it before either.
    ///
    /// # Errors
    ///
    /// [`ForkedProcess`](ResourceError::ForkedProcess).
    #[inline]
    pub fn refuse_fork(&self) -> ResourceResult<()> {
        self.inner.opened_in.check(self.ordinal())
    }

    /// Returns whether the device is lost.
    #[must_use]
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.inner.lost.get().is_some()
    }

    /// Returns whether this process was forked after the device was opened.
    #[must_use]
    #[inline]
    pub fn is_forked(&self) -> bool {
        !self.inner.opened_in.is_current()
    }

    /// Makes the context current on the calling thread, where it stays so.
    ///
    /// One driver call if it is current already, two if not. Unlike
    /// `CudaContext::bind_to_thread` it writes to no memory that threads share, and does not
    /// return an error that an earlier call has left behind.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), and [`Driver`](ResourceError::Driver).
    #[inline]
    pub fn bind(&self) -> ResourceResult<()> {
        self.check()?;
        self.make_current().map_err(|(call, error)| self.driver_error(call, error))?;
        Ok(())
    }

    /// Waits for all work submitted to the device by this context.
    ///
    /// For programs and tests that capture no graph: the driver refuses this call while any stream
    /// of the context captures, by whichever thread and in whichever mode, and ends that capture.
    /// [`StreamPool::synchronize_all`](crate::StreamPool::synchronize_all) ends none.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver), which may come from work submitted earlier.
    pub fn synchronize(&self) -> ResourceResult<()> {
        self.bind()?;
        let _waiting = dmr_recorder::hooks::HostWait::for_device(self.ordinal());
        result::ctx::synchronize().map_err(|error| self.driver_error("cuCtxSynchronize", error))
    }

    /// Returns whether both are devices of the same CUDA context.
    #[must_use]
    pub fn same_context(&self, other: &Self) -> bool {
        self.context().cu_ctx() == other.context().cu_ctx()
    }

    /// Converts the error of a driver call on this device. A sticky error makes the device lost,
    /// and becomes [`DeviceLost`](ResourceError::DeviceLost). In a forked child every error becomes
    /// [`ForkedProcess`](ResourceError::ForkedProcess).
    #[must_use]
    #[cfg_attr(not(feature = "cudarc"), doc(hidden))]
    pub fn driver_error(&self, call: &'static str, error: DriverError) -> ResourceError {
        if self.is_forked() {
            return ResourceError::forked_process(self.ordinal());
        }
        let code = code(error);
        if is_sticky(code) {
            let mut is_first = false;
            let first = self.inner.lost.get_or_init(|| {
                is_first = true;
                let simulated = self.simulated();
                let finding = simulated.and_then(|driver| driver.finding_of_loss(self.ordinal()));
                StickyError { call, code, finding }
            });
            let lost = first.lost(self.ordinal());
            if is_first && dmr_recorder::is_on() {
                dmr_recorder::hooks::device_lost(self.ordinal(), &lost.to_string());
            }
            return lost;
        }
        ResourceError::driver(call, code, library::error_name(code), self.ordinal())
    }

    /// Makes the context current, and returns whether it was not.
    #[inline]
    pub(crate) fn make_current(&self) -> Result<bool, (&'static str, DriverError)> {
        let context = self.context().cu_ctx();
        match result::ctx::get_current() {
            Ok(Some(current)) if current == context => return Ok(false),
            // The sticky error may be that of another context.
            Err(error) if !is_sticky(code(error)) => return Err(("cuCtxGetCurrent", error)),
            _ => {}
        }
        // SAFETY: `inner.context` keeps the context alive.
        unsafe { result::ctx::set_current(context) }.map_err(|error| ("cuCtxSetCurrent", error))?;
        Ok(true)
    }
}

/// `device 0 (NVIDIA H200)`.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} ({})", self.ordinal(), self.name())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, {:?})", self.ordinal(), self.name())
    }
}

/// Returns whether the context, or the process, cannot be used again after this `CUresult`.
///
/// The driver API's documentation says so for each of these ("leaves the process in an inconsistent
/// state"), except 709, where the context is gone. The codes between them refuse one call only: 701
/// and 720 (a launch with too many resources), 703 to 708 and 711 to 713 (peer access, primary
/// context, host memory). So does 999, "unknown".
const fn is_sticky(code: i32) -> bool {
    matches!(
        code,
        // Uncorrectable ECC and NVLink errors, and one that the hardware has contained.
        214 | 220 | 226
        // Illegal address, launch timeout, destroyed context, assert.
        | 700 | 702 | 709 | 710
        // Hardware stack, illegal instruction, misaligned address, address space, program
        // counter, launch failure.
        | 714
            ..=719
        // Tensor memory that a kernel did not free.
        | 721
    )
}

fn code(DriverError(error): DriverError) -> i32 {
    const _: () = assert!(size_of::<sys::CUresult>() == size_of::<i32>());
    error as i32
}
