//! Libraries: modules that name no context. The simulator loads one into the calling thread's
//! context.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::module::{enumerate, put_variable, read};
use super::{Scope, chapter, driver_call, put, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::kernel::{CompilerLog, LogBuffers, Refused, image::bytes_of};

chapter![
    cuLibraryLoadData,
    cuLibraryLoadFromFile,
    cuLibraryUnload,
    cuLibraryGetKernel,
    cuLibraryGetKernelCount,
    cuLibraryEnumerateKernels,
    cuLibraryGetModule,
    cuLibraryGetGlobal,
];

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
unsafe extern "C" fn cuLibraryLoadData(
    library: *mut Handle,
    code: *const c_void,
    options: *const c_int,
    values: *const *mut c_void,
    count: c_uint,
    _library_options: *const c_int,
    _library_values: *const *mut c_void,
    _library_count: c_uint,
) -> Code {
    // SAFETY: by the driver's contract the code is a C string or a whole binary, there are `count`
    // options with their values, and the caller's pointer is null or writable.
    unsafe {
        let options = LogBuffers::read(count, options, values);
        let mut log = CompilerLog::default();
        let returned = load("cuLibraryLoadData", library, bytes_of(code.cast()), &mut log);
        options.report(&log);
        returned
    }
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
unsafe extern "C" fn cuLibraryLoadFromFile(
    library: *mut Handle,
    path: *const c_char,
    options: *const c_int,
    values: *const *mut c_void,
    count: c_uint,
    _library_options: *const c_int,
    _library_values: *const *mut c_void,
    _library_count: c_uint,
) -> Code {
    let Some(image) = read(path) else { return ERROR_FILE_NOT_FOUND };
    // SAFETY: as above.
    unsafe {
        let options = LogBuffers::read(count, options, values);
        let mut log = CompilerLog::default();
        let returned = load("cuLibraryLoadFromFile", library, Ok(&image), &mut log);
        options.report(&log);
        returned
    }
}

/// # Safety
///
/// `library` is null, or valid for writing a handle.
unsafe fn load(
    name: &'static str,
    library: *mut Handle,
    image: Result<&[u8], Refused>,
    log: &mut CompilerLog,
) -> Code {
    driver_call(name, Scope::Context, |session| {
        required(library)?;
        let index = session.load_image(image, log)?;
        // SAFETY: by this function's contract.
        unsafe { put(library, session.handle(Kind::Library, index)) }
    })
}

extern "C" fn cuLibraryUnload(library: Handle) -> Code {
    driver_call("cuLibraryUnload", Scope::Context, |session| {
        let index = session.index_of(Kind::Library, library)?;
        session.unload_module(index)
    })
}

unsafe extern "C" fn cuLibraryGetKernel(
    kernel: *mut Handle,
    library: Handle,
    name: *const c_char,
) -> Code {
    driver_call("cuLibraryGetKernel", Scope::Context, |session| {
        let module = session.index_of(Kind::Library, library)?;
        let index = session.find_function(module, name)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(kernel, session.handle(Kind::Kernel, index)) }
    })
}

unsafe extern "C" fn cuLibraryGetKernelCount(count: *mut c_uint, library: Handle) -> Code {
    driver_call("cuLibraryGetKernelCount", Scope::Context, |session| {
        let known = session.module(session.index_of(Kind::Library, library)?)?.kernels().len();
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(count, known as c_uint) }
    })
}

unsafe extern "C" fn cuLibraryEnumerateKernels(
    kernels: *mut Handle,
    count: c_uint,
    library: Handle,
) -> Code {
    driver_call("cuLibraryEnumerateKernels", Scope::Context, |session| {
        let module = session.index_of(Kind::Library, library)?;
        // SAFETY: the caller has room for `count` handles.
        unsafe { enumerate(session, kernels, count, module, Kind::Kernel) }
    })
}

unsafe extern "C" fn cuLibraryGetModule(module: *mut Handle, library: Handle) -> Code {
    driver_call("cuLibraryGetModule", Scope::Context, |session| {
        let index = session.index_of(Kind::Library, library)?;
        session.module(index)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(module, session.handle(Kind::Module, index)) }
    })
}

unsafe extern "C" fn cuLibraryGetGlobal(
    at: *mut CUdeviceptr,
    bytes: *mut usize,
    library: Handle,
    name: *const c_char,
) -> Code {
    driver_call("cuLibraryGetGlobal", Scope::Context, |session| {
        let index = session.index_of(Kind::Library, library)?;
        // SAFETY: the caller's pointers are null or writable.
        unsafe { put_variable(session, at, bytes, index, name) }
    })
}
