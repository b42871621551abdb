//! Module management: PTX text in, functions and variables out.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::{Scope, chapter, driver_call, put, put_optional, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::kernel::{CompilerLog, LogBuffers, Refused, image::bytes_of};
use crate::machine::Session;

chapter![
    cuModuleLoad,
    cuModuleLoadData,
    cuModuleLoadDataEx,
    cuModuleLoadFatBinary,
    cuModuleUnload,
    cuModuleGetLoadingMode,
    cuModuleGetFunction,
    cuModuleGetFunctionCount,
    cuModuleEnumerateFunctions,
    cuModuleGetGlobal_v2,
];

unsafe extern "C" fn cuModuleLoad(module: *mut Handle, file: *const c_char) -> Code {
    let Some(image) = read(file) else { return ERROR_FILE_NOT_FOUND };
    // SAFETY: the caller's pointer is null or writable.
    unsafe { load("cuModuleLoad", module, Ok(&image), &mut CompilerLog::default()) }
}

/// Reads the file of a path that is null or, by the driver's contract, a C string.
pub(super) fn read(file: *const c_char) -> Option<Vec<u8>> {
    if file.is_null() {
        return None;
    }
    // SAFETY: not null, so a C string.
    let path = unsafe { CStr::from_ptr(file) }.to_string_lossy();
    std::fs::read(&*path).ok()
}

unsafe extern "C" fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> Code {
    // SAFETY: by the driver's contract the image is a C string or a whole binary; the caller's
    // pointer is null or writable.
    unsafe { load("cuModuleLoadData", module, bytes_of(image.cast()), &mut CompilerLog::default()) }
}

unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut Handle,
    image: *const c_void,
    count: c_uint,
    options: *const c_int,
    values: *const *mut c_void,
) -> Code {
    // SAFETY: as above; by the driver's contract there are `count` options with their values.
    unsafe {
        let options = LogBuffers::read(count, options, values);
        let mut log = CompilerLog::default();
        let code = load("cuModuleLoadDataEx", module, bytes_of(image.cast()), &mut log);
        options.report(&log);
        code
    }
}

unsafe extern "C" fn cuModuleLoadFatBinary(module: *mut Handle, image: *const c_void) -> Code {
    // SAFETY: as for `cuModuleLoadData`.
    unsafe {
        load("cuModuleLoadFatBinary", module, bytes_of(image.cast()), &mut CompilerLog::default())
    }
}

/// # Safety
///
/// `module` is null, or valid for writing a handle.
unsafe fn load(
    name: &'static str,
    module: *mut Handle,
    image: Result<&[u8], Refused>,
    log: &mut CompilerLog,
) -> Code {
    driver_call(name, Scope::Context, |session| {
        required(module)?;
        let index = session.load_image(image, log)?;
        // SAFETY: by this function's contract.
        unsafe { put(module, session.handle(Kind::Module, index)) }
    })
}

extern "C" fn cuModuleUnload(module: Handle) -> Code {
    driver_call("cuModuleUnload", Scope::ContextOr(module), |session| {
        let index = session.index_of(Kind::Module, module)?;
        session.unload_module(index)
    })
}

/// Returns `CU_MODULE_EAGER_LOADING`: all of a module is loaded at once.
unsafe extern "C" fn cuModuleGetLoadingMode(mode: *mut c_int) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { put(mode, 1) }.err().unwrap_or(SUCCESS)
}

unsafe extern "C" fn cuModuleGetFunction(
    function: *mut Handle,
    module: Handle,
    name: *const c_char,
) -> Code {
    driver_call("cuModuleGetFunction", Scope::ContextOr(module), |session| {
        let module = session.index_of(Kind::Module, module)?;
        let index = session.find_function(module, name)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(function, session.handle(Kind::Function, index)) }
    })
}

unsafe extern "C" fn cuModuleGetFunctionCount(count: *mut c_uint, module: Handle) -> Code {
    driver_call("cuModuleGetFunctionCount", Scope::ContextOr(module), |session| {
        let known = session.module(session.index_of(Kind::Module, module)?)?.kernels().len();
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(count, known as c_uint) }
    })
}

unsafe extern "C" fn cuModuleEnumerateFunctions(
    functions: *mut Handle,
    count: c_uint,
    module: Handle,
) -> Code {
    driver_call("cuModuleEnumerateFunctions", Scope::ContextOr(module), |session| {
        let module = session.index_of(Kind::Module, module)?;
        // SAFETY: the caller has room for `count` handles.
        unsafe { enumerate(session, functions, count, module, Kind::Function) }
    })
}

/// Writes handles of the first `count` functions of a module.
///
/// # Safety
///
/// `to` is null, or valid for writing `count` handles.
pub(super) unsafe fn enumerate(
    session: &mut Session<'_>,
    to: *mut Handle,
    count: c_uint,
    module: u32,
    kind: Kind,
) -> Outcome {
    let entries = session.module(module)?.kernels().len();
    for place in 0..entries.min(count as usize) {
        let index = session.function_index(module, place);
        // SAFETY: by this function's contract.
        unsafe { put(to.wrapping_add(place), session.handle(kind, index))? };
    }
    Ok(())
}

unsafe extern "C" fn cuModuleGetGlobal_v2(
    at: *mut CUdeviceptr,
    bytes: *mut usize,
    module: Handle,
    name: *const c_char,
) -> Code {
    driver_call("cuModuleGetGlobal_v2", Scope::ContextOr(module), |session| {
        let index = session.index_of(Kind::Module, module)?;
        // SAFETY: the caller's pointers are null or writable.
        unsafe { put_variable(session, at, bytes, index, name) }
    })
}

/// Writes the address and the size of a variable.
///
/// # Safety
///
/// `at` and `bytes` are null, or valid for writing.
pub(super) unsafe fn put_variable(
    session: &Session<'_>,
    at: *mut CUdeviceptr,
    bytes: *mut usize,
    module: u32,
    name: *const c_char,
) -> Outcome {
    let name = name_of(name)?;
    let mut variables = session.module(module)?.variables.iter();
    let found = variables.find(|variable| variable.name == name).ok_or(ERROR_NOT_FOUND)?;
    // SAFETY: by this function's contract.
    unsafe {
        put_optional(at, found.at);
        put_optional(bytes, found.bytes as usize);
    }
    Ok(())
}

/// Returns the text of a name, which is null or, by the driver's contract, a C string.
pub(super) fn name_of<'a>(name: *const c_char) -> Outcome<&'a str> {
    if name.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so a C string, which lives as long as the call.
    unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| ERROR_NOT_FOUND)
}

impl Session<'_> {
    /// Returns the index of the function with this name.
    pub(crate) fn find_function(&mut self, module: u32, name: *const c_char) -> Outcome<u32> {
        let entries = self.module(module)?.kernels();
        let name = name_of(name)?;
        let place = entries.iter().position(|entry| entry.name == name);
        let place = place.ok_or(ERROR_NOT_FOUND)?;
        Ok(self.function_index(module, place))
    }

    /// Returns the index of the function at this place of a module.
    pub(crate) fn function_index(&mut self, module: u32, place: usize) -> u32 {
        let entry = (module, place);
        let known = self.kernels.functions.iter().position(|function| *function == entry);
        let index = known.unwrap_or_else(|| {
            self.kernels.functions.push(entry);
            self.kernels.functions.len() - 1
        });
        index as u32
    }
}
