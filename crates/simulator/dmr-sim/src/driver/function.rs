//! Functions and kernels: their attributes, names and parameters.

use std::ffi::{c_char, c_int, c_uint};

use super::{Scope, chapter, driver_call, put, put_optional};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::machine::Session;

chapter![
    cuFuncGetAttribute,
    cuFuncSetAttribute,
    cuFuncSetCacheConfig,
    cuFuncSetSharedMemConfig,
    cuFuncGetModule,
    cuFuncGetName,
    cuFuncGetParamInfo,
    cuFuncGetParamCount,
    cuFuncIsLoaded,
    cuFuncLoad,
    cuKernelGetAttribute,
    cuKernelSetAttribute,
    cuKernelSetCacheConfig,
    cuKernelGetFunction,
    cuKernelGetLibrary,
    cuKernelGetName,
    cuKernelGetParamInfo,
    cuKernelGetParamCount,
];

/// Values of `CUfunction_attribute`.
pub(super) const MAX_THREADS_PER_BLOCK: c_int = 0;
const SHARED_BYTES: c_int = 1;
const CONSTANT_BYTES: c_int = 2;
const LOCAL_BYTES: c_int = 3;
pub(super) const REGISTERS: c_int = 4;
const PTX_VERSION: c_int = 5;
const BINARY_VERSION: c_int = 6;
pub(super) const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;
const PREFERRED_SHARED_CARVEOUT: c_int = 9;
const LAST: c_int = 15;
/// The bytes of shared memory that a block can have on request.
const OPT_IN_SHARED_BYTES: c_int = 227 << 10;

impl Session<'_> {
    /// Returns the index of a function, or of a kernel of a library, whose module is loaded.
    pub(super) fn function_of(&self, handle: Handle) -> Outcome<u32> {
        let index = self.index_of(Kind::Function, handle);
        let index = index.or_else(|_| self.index_of(Kind::Kernel, handle))?;
        self.entry(index).map(|_| index)
    }

    /// Returns the program that has a function.
    fn program(&self, index: u32) -> Outcome<&dmr_ptx::Program> {
        let &(module, _) =
            self.kernels.functions.get(index as usize).ok_or(ERROR_INVALID_HANDLE)?;
        Ok(&self.module(module)?.loaded.program)
    }

    /// Returns the bytes of the variables in constant memory of a function's module.
    fn constant_bytes(&self, index: u32) -> Outcome<u64> {
        let variables = self.program(index)?.globals().iter();
        let constants = variables.filter(|variable| variable.is_constant);
        Ok(constants.fold(0, |sum, variable| sum.saturating_add(variable.bytes)))
    }

    /// Returns an attribute of a function.
    pub(super) fn function_attribute(&self, index: u32, attribute: c_int) -> Outcome<c_int> {
        let set = self.objects.function_attributes.get(&(index, attribute)).copied();
        let kernel = self.entry(index)?;
        let bytes = |bytes: u64| c_int::try_from(bytes).unwrap_or(c_int::MAX);
        Ok(match attribute {
            MAX_THREADS_PER_BLOCK => {
                kernel.max_threads.map_or(1024, |most| most.min(1024) as c_int)
            }
            SHARED_BYTES => bytes(kernel.shared_bytes),
            LOCAL_BYTES => bytes(kernel.local_bytes),
            REGISTERS => 32,
            CONSTANT_BYTES => bytes(self.constant_bytes(index)?),
            PTX_VERSION => self.program(index)?.target() as c_int,
            BINARY_VERSION => 90,
            // What the kernel's own variables leave of what every block has.
            MAX_DYNAMIC_SHARED_BYTES => {
                set.unwrap_or_else(|| (48 << 10) - bytes(kernel.shared_bytes).min(48 << 10))
            }
            PREFERRED_SHARED_CARVEOUT => set.unwrap_or(-1),
            7..=LAST => set.unwrap_or(0),
            _ => return Err(ERROR_INVALID_VALUE),
        })
    }

    fn set_function_attribute(&mut self, index: u32, attribute: c_int, value: c_int) -> Outcome {
        let allowed = match attribute {
            MAX_DYNAMIC_SHARED_BYTES => {
                let own = self.entry(index)?.shared_bytes;
                0..=OPT_IN_SHARED_BYTES - c_int::try_from(own).unwrap_or(OPT_IN_SHARED_BYTES)
            }
            PREFERRED_SHARED_CARVEOUT => -1..=100,
            11..=15 => 0..=c_int::MAX, // clusters
            _ => return Err(ERROR_INVALID_VALUE),
        };
        if !allowed.contains(&value) {
            return Err(ERROR_INVALID_VALUE);
        }
        self.objects.function_attributes.insert((index, attribute), value);
        Ok(())
    }
}

unsafe extern "C" fn cuFuncGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    function: Handle,
) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { get("cuFuncGetAttribute", value, attribute, function) }
}

unsafe extern "C" fn cuKernelGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    kernel: Handle,
    _device: CUdevice,
) -> Code {
    // SAFETY: as above.
    unsafe { get("cuKernelGetAttribute", value, attribute, kernel) }
}

/// # Safety
///
/// `value` is null, or valid for writing.
unsafe fn get(name: &'static str, value: *mut c_int, attribute: c_int, function: Handle) -> Code {
    driver_call(name, Scope::ContextOr(function), |session| {
        let index = session.function_of(function)?;
        let known = session.function_attribute(index, attribute)?;
        // SAFETY: by this function's contract.
        unsafe { put(value, known) }
    })
}

extern "C" fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int) -> Code {
    driver_call("cuFuncSetAttribute", Scope::ContextOr(function), |session| {
        let index = session.function_of(function)?;
        session.set_function_attribute(index, attribute, value)
    })
}

extern "C" fn cuKernelSetAttribute(
    attribute: c_int,
    value: c_int,
    kernel: Handle,
    _device: CUdevice,
) -> Code {
    driver_call("cuKernelSetAttribute", Scope::ContextOr(kernel), |session| {
        let index = session.function_of(kernel)?;
        session.set_function_attribute(index, attribute, value)
    })
}

extern "C" fn cuFuncSetCacheConfig(function: Handle, _config: c_int) -> Code {
    driver_call("cuFuncSetCacheConfig", Scope::ContextOr(function), |session| {
        session.function_of(function).map(drop)
    })
}

extern "C" fn cuFuncSetSharedMemConfig(function: Handle, _config: c_int) -> Code {
    driver_call("cuFuncSetSharedMemConfig", Scope::ContextOr(function), |session| {
        session.function_of(function).map(drop)
    })
}

extern "C" fn cuKernelSetCacheConfig(kernel: Handle, _config: c_int, _device: CUdevice) -> Code {
    driver_call("cuKernelSetCacheConfig", Scope::ContextOr(kernel), |session| {
        session.function_of(kernel).map(drop)
    })
}

unsafe extern "C" fn cuFuncGetModule(module: *mut Handle, function: Handle) -> Code {
    driver_call("cuFuncGetModule", Scope::ContextOr(function), |session| {
        let owner = session.kernels.functions[session.function_of(function)? as usize].0;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(module, session.handle(Kind::Module, owner)) }
    })
}

unsafe extern "C" fn cuKernelGetLibrary(library: *mut Handle, kernel: Handle) -> Code {
    driver_call("cuKernelGetLibrary", Scope::ContextOr(kernel), |session| {
        let owner = session.kernels.functions[session.function_of(kernel)? as usize].0;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(library, session.handle(Kind::Library, owner)) }
    })
}

unsafe extern "C" fn cuKernelGetFunction(function: *mut Handle, kernel: Handle) -> Code {
    driver_call("cuKernelGetFunction", Scope::ContextOr(kernel), |session| {
        let index = session.function_of(kernel)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(function, session.handle(Kind::Function, index)) }
    })
}

unsafe extern "C" fn cuFuncGetName(name: *mut *const c_char, function: Handle) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { put_name("cuFuncGetName", name, function) }
}

unsafe extern "C" fn cuKernelGetName(name: *mut *const c_char, kernel: Handle) -> Code {
    // SAFETY: as above.
    unsafe { put_name("cuKernelGetName", name, kernel) }
}

/// Writes a pointer to the name, which lives as long as the module.
///
/// # Safety
///
/// `to` is null, or valid for writing.
unsafe fn put_name(name: &'static str, to: *mut *const c_char, function: Handle) -> Code {
    driver_call(name, Scope::ContextOr(function), |session| {
        let (module, place) = session.kernels.functions[session.function_of(function)? as usize];
        let name = session.module(module)?.names.get(place).ok_or(ERROR_INVALID_HANDLE)?;
        // SAFETY: by this function's contract.
        unsafe { put(to, name.as_ptr()) }
    })
}

unsafe extern "C" fn cuFuncGetParamInfo(
    function: Handle,
    index: usize,
    offset: *mut usize,
    bytes: *mut usize,
) -> Code {
    // SAFETY: the caller's pointers are null or writable.
    unsafe { put_param("cuFuncGetParamInfo", function, index, offset, bytes) }
}

unsafe extern "C" fn cuKernelGetParamInfo(
    kernel: Handle,
    index: usize,
    offset: *mut usize,
    bytes: *mut usize,
) -> Code {
    // SAFETY: as above.
    unsafe { put_param("cuKernelGetParamInfo", kernel, index, offset, bytes) }
}

/// # Safety
///
/// `offset` and `bytes` are null, or valid for writing; a null `bytes` is for a result that the
/// program does not need.
unsafe fn put_param(
    name: &'static str,
    function: Handle,
    index: usize,
    offset: *mut usize,
    bytes: *mut usize,
) -> Code {
    driver_call(name, Scope::ContextOr(function), |session| {
        let entry = session.entry(session.function_of(function)?)?;
        let param = entry.params.get(index).ok_or(ERROR_INVALID_VALUE)?;
        // SAFETY: by this function's contract.
        unsafe {
            put(offset, param.offset)?;
            put_optional(bytes, param.bytes);
        }
        Ok(())
    })
}

unsafe extern "C" fn cuFuncGetParamCount(function: Handle, count: *mut usize) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { put_param_count("cuFuncGetParamCount", function, count) }
}

unsafe extern "C" fn cuKernelGetParamCount(kernel: Handle, count: *mut usize) -> Code {
    // SAFETY: as above.
    unsafe { put_param_count("cuKernelGetParamCount", kernel, count) }
}

/// # Safety
///
/// `count` is null, or valid for writing.
unsafe fn put_param_count(name: &'static str, function: Handle, count: *mut usize) -> Code {
    driver_call(name, Scope::ContextOr(function), |session| {
        let known = session.entry(session.function_of(function)?)?.params.len();
        // SAFETY: by this function's contract.
        unsafe { put(count, known) }
    })
}

/// Writes `CU_FUNCTION_LOADING_STATE_LOADED`: a module's functions are loaded with it.
unsafe extern "C" fn cuFuncIsLoaded(state: *mut c_uint, function: Handle) -> Code {
    driver_call("cuFuncIsLoaded", Scope::ContextOr(function), |session| {
        session.function_of(function)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(state, 1) }
    })
}

extern "C" fn cuFuncLoad(function: Handle) -> Code {
    driver_call("cuFuncLoad", Scope::ContextOr(function), |session| {
        session.function_of(function).map(drop)
    })
}
