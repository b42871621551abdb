//! A handle: its context, module and settings, and how it launches a kernel.

use std::ffi::{CString, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::driver::{Driver, Object, check, driver};
use crate::kernels::{Scalar, module};
use crate::status::{Status, require, status_of};

/// 12.9.1, in the form of cuBLAS.
const VERSION: [c_int; 3] = [12, 9, 1];
/// The pointer mode in which scalars and results are in device memory.
const DEVICE: c_int = 1;
const THREADS_OF_A_BLOCK: u32 = 128;

/// A `cublasHandle_t` points at one.
pub(crate) struct Handle {
    driver: &'static Driver,
    context: Object,
    module: Object,
    /// The address of a variable of the module, for a result that the host reads.
    result: u64,
    settings: Mutex<Settings>,
}

#[derive(Clone, Copy, Default)]
struct Settings {
    stream: Object,
    pointer_mode: c_int,
    math_mode: c_int,
    atomics_mode: c_int,
}

impl Handle {
    fn new() -> Result<Self, Status> {
        let driver = driver()?;
        let mut context = 0;
        let mut module = 0;
        let mut result = 0;
        let mut bytes = 0;
        let text = CString::new(self::module()).map_err(|_| Status::InternalError)?;
        // SAFETY: the pointers are to places of the right types.
        unsafe {
            check((driver.current_context)(&mut context))?;
            if context == 0 {
                return Err(Status::NotInitialized);
            }
            check((driver.load_module)(&mut module, text.as_ptr()))?;
            let name = c"cublas_result".as_ptr();
            check((driver.module_variable)(&mut result, &mut bytes, module, name))?;
        }
        Ok(Self { driver, context, module, result, settings: Mutex::default() })
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the argument of a kernel for a scalar of this many bytes.
    ///
    /// # Safety
    ///
    /// In host mode the scalar is at that address.
    pub(crate) unsafe fn scalar(&self, at: *const c_void, bytes: i64) -> Result<Scalar, Status> {
        require(!at.is_null())?;
        if self.settings().pointer_mode == DEVICE {
            return Ok(Scalar { bits: 0, address: at as u64 });
        }
        let mut bits = 0_u64;
        // SAFETY: the caller's promise; a scalar has at most 8 bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(at.cast::<u8>(), (&raw mut bits).cast(), bytes as usize)
        };
        Ok(Scalar { bits, address: 0 })
    }

    /// Runs driver calls with the handle's context current.
    fn in_context(&self, calls: impl FnOnce() -> Result<(), Status>) -> Result<(), Status> {
        let mut popped = 0;
        // SAFETY: the context is that of the handle's module.
        check(unsafe { (self.driver.push_context)(self.context) })?;
        let result = calls();
        // SAFETY: as above.
        check(unsafe { (self.driver.pop_context)(&mut popped) })?;
        result
    }

    /// Launches a kernel with this number of threads on the handle's stream.
    ///
    /// # Safety
    ///
    /// The arguments are those that the kernel of this name has.
    pub(crate) unsafe fn launch<A>(
        &self,
        name: &str,
        threads: u64,
        mut arguments: A,
    ) -> Result<(), Status> {
        let blocks = threads.div_ceil(u64::from(THREADS_OF_A_BLOCK));
        let blocks = i32::try_from(blocks).map_err(|_| Status::NotSupported)? as u32;
        let block = threads.min(u64::from(THREADS_OF_A_BLOCK)) as u32;
        let name = CString::new(name).map_err(|_| Status::InternalError)?;
        let stream = self.settings().stream;
        self.in_context(|| {
            let mut function = 0;
            let mut pointers = [(&raw mut arguments).cast::<c_void>()];
            let none = std::ptr::null_mut();
            // SAFETY: the caller's promise about the arguments, which the driver copies.
            unsafe {
                check((self.driver.module_function)(&mut function, self.module, name.as_ptr()))?;
                let launch = self.driver.launch;
                check(launch(
                    function,
                    blocks,
                    1,
                    1,
                    block,
                    1,
                    1,
                    0,
                    stream,
                    pointers.as_mut_ptr(),
                    none,
                ))
            }
        })
    }

    /// Runs `launch` with the device address of a result of this many bytes. In host mode the
    /// result is then copied to the caller's place, and the stream has completed.
    ///
    /// # Safety
    ///
    /// The place is in host or device memory, as the mode says, and has room for the result.
    pub(crate) unsafe fn with_result(
        &self,
        place: *mut c_void,
        bytes: usize,
        launch: impl FnOnce(u64) -> Result<(), Status>,
    ) -> Result<(), Status> {
        require(!place.is_null())?;
        let settings = *self.settings();
        if settings.pointer_mode == DEVICE {
            return launch(place as u64);
        }
        launch(self.result)?;
        // SAFETY: the caller's promise.
        self.in_context(|| unsafe {
            check((self.driver.copy_to_host)(place, self.result, bytes, settings.stream))?;
            check((self.driver.synchronize_stream)(settings.stream))
        })
    }
}

/// Runs the body of an exported function with the handle.
pub(crate) fn with(
    handle: Option<&Handle>,
    body: impl FnOnce(&Handle) -> Result<(), Status>,
) -> c_int {
    status_of(|| body(handle.ok_or(Status::NotInitialized)?))
}

fn store<T>(place: Option<&mut T>, value: T) -> Result<(), Status> {
    *place.ok_or(Status::InvalidValue)? = value;
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cublasCreate_v2(handle: Option<&mut *mut Handle>) -> c_int {
    status_of(|| {
        let handle = handle.ok_or(Status::InvalidValue)?;
        *handle = Box::into_raw(Box::new(Handle::new()?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasDestroy_v2(handle: *mut Handle) -> c_int {
    status_of(|| {
        if handle.is_null() {
            return Err(Status::NotInitialized);
        }
        // SAFETY: `cublasCreate_v2` made it, and the program does not use it again.
        let handle = unsafe { Box::from_raw(handle) };
        // SAFETY: the work that uses the module has completed.
        handle.in_context(|| unsafe {
            check((handle.driver.synchronize_context)())?;
            check((handle.driver.unload_module)(handle.module))
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetVersion_v2(_handle: Option<&Handle>, version: Option<&mut c_int>) -> c_int {
    let [major, minor, patch] = VERSION;
    status_of(|| store(version, major * 10_000 + minor * 100 + patch))
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetProperty(property: c_int, value: Option<&mut c_int>) -> c_int {
    status_of(|| {
        let part = usize::try_from(property).ok().and_then(|property| VERSION.get(property));
        store(value, *part.ok_or(Status::InvalidValue)?)
    })
}

/// Exports the functions that set and get a setting.
macro_rules! settings {
    ($($set:ident $get:ident $field:ident $type:ty, $valid:pat,)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $set(handle: Option<&Handle>, value: $type) -> c_int {
            with(handle, |handle| {
                require(matches!(value, $valid))?;
                handle.settings().$field = value;
                Ok(())
            })
        }

        #[unsafe(no_mangle)]
        extern "C" fn $get(handle: Option<&Handle>, value: Option<&mut $type>) -> c_int {
            with(handle, |handle| store(value, handle.settings().$field))
        }
    )*};
}

settings! {
    cublasSetStream_v2 cublasGetStream_v2 stream Object, _,
    cublasSetPointerMode_v2 cublasGetPointerMode_v2 pointer_mode c_int, 0 | DEVICE,
    cublasSetMathMode cublasGetMathMode math_mode c_int, _,
    cublasSetAtomicsMode cublasGetAtomicsMode atomics_mode c_int, 0 | 1,
}

/// The workspace is not used.
#[unsafe(no_mangle)]
extern "C" fn cublasSetWorkspace_v2(
    handle: Option<&Handle>,
    _workspace: u64,
    _bytes: usize,
) -> c_int {
    with(handle, |_| Ok(()))
}
