//! The functions of the driver that this library calls.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::status::Status;

/// `dlopen` returns a library that is loaded already, or none.
const RTLD_NOLOAD: c_int = 4;

/// A context, module, function or stream of the driver.
pub(crate) type Object = usize;

macro_rules! functions {
    ($($field:ident $name:literal ($($argument:ty),*))*) => {
        /// The functions, of which each returns a `CUresult`.
        pub(crate) struct Driver {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        fn load(library: &Library) -> Option<Driver> {
            // SAFETY: the functions of these names have these types; the library is never unloaded.
            unsafe { Some(Driver { $($field: *library.get($name).ok()?,)* }) }
        }
    };
}

functions! {
    current_context b"cuCtxGetCurrent\0" (*mut Object)
    push_context b"cuCtxPushCurrent_v2\0" (Object)
    pop_context b"cuCtxPopCurrent_v2\0" (*mut Object)
    synchronize_context b"cuCtxSynchronize\0" ()
    load_module b"cuModuleLoadData\0" (*mut Object, *const c_char)
    unload_module b"cuModuleUnload\0" (Object)
    module_function b"cuModuleGetFunction\0" (*mut Object, Object, *const c_char)
    module_variable b"cuModuleGetGlobal_v2\0" (*mut u64, *mut usize, Object, *const c_char)
    launch b"cuLaunchKernel\0" (
        Object, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Object, *mut *mut c_void, *mut *mut c_void
    )
    copy_to_host b"cuMemcpyDtoHAsync_v2\0" (*mut c_void, u64, usize, Object)
    synchronize_stream b"cuStreamSynchronize\0" (Object)
}

/// Returns the driver of this process: the one that is loaded, or the one that the dynamic linker
/// finds.
pub(crate) fn driver() -> Result<&'static Driver, Status> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let find = || {
        [RTLD_NOLOAD, 0].into_iter().find_map(|flag| {
            ["libcuda.so", "libcuda.so.1"].into_iter().find_map(|name| {
                // SAFETY: the initialisers of a driver may run here.
                let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | flag) };
                let library = std::mem::ManuallyDrop::new(library.ok()?);
                load(&library)
            })
        })
    };
    DRIVER.get_or_init(find).as_ref().ok_or(Status::NotInitialized)
}

/// Converts a `CUresult`.
pub(crate) fn check(result: c_int) -> Result<(), Status> {
    match result {
        0 => Ok(()),
        2 => Err(Status::AllocFailed),
        3 | 4 | 201 => Err(Status::NotInitialized),
        _ => Err(Status::ExecutionFailed),
    }
}
