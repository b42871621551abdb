//! Module management: PTX text in, functions out.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::{chapter, put, required};
use crate::abi::*;
use crate::handle::Kind;
use crate::ptx::{self, KernelEntry};
use crate::session::{Scope, Session, driver_call};

chapter![
    cuModuleLoad,
    cuModuleLoadData,
    cuModuleUnload,
    cuModuleGetFunction,
    cuModuleGetGlobal_v2,
    cuFuncGetAttribute,
    cuFuncSetAttribute,
    cuFuncSetCacheConfig,
];

/// The first bytes of binary modules: ELF (cubin) and fat binaries.
const BINARIES: [[u8; 4]; 2] = [*b"\x7fELF", [0x50, 0xed, 0x55, 0xba]];

unsafe extern "C" fn cuModuleLoad(module: *mut Handle, file: *const c_char) -> Code {
    if file.is_null() {
        return ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, so by the driver's contract a C string.
    let path = unsafe { CStr::from_ptr(file) }.to_string_lossy();
    match std::fs::read(&*path) {
        // SAFETY: the caller's pointer is null or writable.
        Ok(image) => unsafe { load("cuModuleLoad", module, &image) },
        Err(_) => ERROR_FILE_NOT_FOUND,
    }
}

unsafe extern "C" fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> Code {
    if image.is_null() {
        return ERROR_INVALID_VALUE;
    }
    // SAFETY: by the driver's contract the image is a binary, which is longer than its magic
    // number, or a C string; one byte after the other is read, and none after a null.
    let head = unsafe { CStr::from_ptr(image.cast()) }.to_bytes();
    // SAFETY: the caller's pointer is null or writable.
    unsafe { load("cuModuleLoadData", module, head) }
}

/// # Safety
///
/// `module` is null, or valid for writing a handle.
unsafe fn load(name: &'static str, module: *mut Handle, image: &[u8]) -> Code {
    driver_call(name, Scope::Context, |session| {
        required(module)?;
        if BINARIES.iter().any(|magic| image.starts_with(magic)) {
            return Err(ERROR_NO_BINARY_FOR_GPU); // machine code is for real devices
        }
        let text = std::str::from_utf8(image).map_err(|_| ERROR_INVALID_IMAGE)?;
        let entries = ptx::parse(text).ok_or(ERROR_INVALID_PTX)?;
        let index = session.next_module;
        session.next_module += 1;
        session.modules.insert(index, entries);
        // SAFETY: by this function's contract.
        unsafe { put(module, session.handle(Kind::Module, index)) }
    })
}

extern "C" fn cuModuleUnload(module: Handle) -> Code {
    driver_call("cuModuleUnload", Scope::Context, |session| {
        let index = session.index_of(Kind::Module, module)?;
        session.modules.remove(&index).map(drop).ok_or(ERROR_INVALID_HANDLE)
    })
}

unsafe extern "C" fn cuModuleGetFunction(
    function: *mut Handle,
    module: Handle,
    name: *const c_char,
) -> Code {
    driver_call("cuModuleGetFunction", Scope::Context, |session| {
        let index = session.index_of(Kind::Module, module)?;
        if name.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so by the driver's contract a C string.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| ERROR_NOT_FOUND)?;
        let entries = session.modules.get(&index).ok_or(ERROR_INVALID_HANDLE)?;
        let place = entries.iter().position(|entry| entry.name == name);
        let entry = (index, place.ok_or(ERROR_NOT_FOUND)?);
        let known = session.functions.iter().position(|function| *function == entry);
        let index = known.unwrap_or_else(|| {
            session.functions.push(entry);
            session.functions.len() - 1
        });
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(function, session.handle(Kind::Function, index as u32)) }
    })
}

extern "C" fn cuModuleGetGlobal_v2(
    _at: *mut CUdeviceptr,
    _bytes: *mut usize,
    _module: Handle,
    _name: *const c_char,
) -> Code {
    driver_call("cuModuleGetGlobal_v2", Scope::Context, |_| Err(ERROR_NOT_FOUND))
}

unsafe extern "C" fn cuFuncGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    function: Handle,
) -> Code {
    driver_call("cuFuncGetAttribute", Scope::Context, |session| {
        session.function(function)?;
        let attribute_value = match attribute {
            0 => 1024,     // threads per block
            4 => 32,       // registers
            5 | 6 => 90,   // PTX and binary version
            8 => 48 << 10, // dynamic shared memory
            1..=15 => 0,
            _ => return Err(ERROR_INVALID_VALUE),
        };
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(value, attribute_value) }
    })
}

extern "C" fn cuFuncSetAttribute(function: Handle, _attribute: c_int, _value: c_int) -> Code {
    driver_call("cuFuncSetAttribute", Scope::Context, |session| {
        session.function(function).map(drop)
    })
}

extern "C" fn cuFuncSetCacheConfig(function: Handle, _config: c_int) -> Code {
    driver_call("cuFuncSetCacheConfig", Scope::Context, |session| {
        session.function(function).map(drop)
    })
}

impl Session<'_> {
    /// Returns the kernel of a handle, if its module is still loaded.
    pub(crate) fn function(&self, function: Handle) -> Outcome<&KernelEntry> {
        let index = self.index_of(Kind::Function, function)?;
        let &(module, place) = self.functions.get(index as usize).ok_or(ERROR_INVALID_HANDLE)?;
        let entries = self.modules.get(&module).ok_or(ERROR_INVALID_HANDLE)?;
        entries.get(place).ok_or(ERROR_INVALID_HANDLE)
    }
}
