//! The library that a tool injects: its path, and its entry points.

use std::env;

use libloading::Library;

use crate::abi::Initialize;

/// The variable with the path of the attached tool's library. Compute Sanitizer and Nsight set it.
const VARIABLE: &str = if cfg!(target_pointer_width = "64") {
    "NVTX_INJECTION64_PATH"
} else {
    "NVTX_INJECTION32_PATH"
};

/// The value that means no tool.
const NO_LIBRARY: &str = "./.";

/// Returns the initializer of the memory extension of the tool that the environment names.
pub(crate) fn memory_extension() -> Option<Initialize> {
    // SAFETY: NVTX gives this symbol this type.
    unsafe { entry_point(c"InitializeInjectionNvtxExtension".to_bytes_with_nul()) }
}

/// Returns an entry point of the library that the environment names. The library stays loaded.
///
/// # Safety
///
/// The symbol has type `T`, which is a function pointer.
pub(crate) unsafe fn entry_point<T: Copy>(symbol: &[u8]) -> Option<T> {
    let path = env::var_os(VARIABLE).filter(|path| !path.is_empty() && path != NO_LIBRARY)?;
    // SAFETY: the tool that started this process has set the variable, so that this library is
    // loaded; the tool is responsible for the library's constructors.
    let library = unsafe { Library::new(path) }.ok()?;
    // SAFETY: of type `T`, as the caller promises.
    let function = unsafe { library.get::<T>(symbol) }.ok().map(|function| *function);
    // The tool is called until the process ends.
    std::mem::forget(library);
    function
}
