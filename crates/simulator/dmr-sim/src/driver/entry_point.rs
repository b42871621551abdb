//! Driver entry point access: functions by name and version.

use std::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};

use super::refused::refuse;
use super::since::SINCE;
use super::symbols::symbols;
use super::{chapter, put};
use crate::abi::*;

chapter![cuGetProcAddress, cuGetProcAddress_v2, cuGetExportTable];

/// Returns the symbol that a name stands for in a version of CUDA; with `per_thread` the one for
/// which the null stream means the thread's own, if the function has a stream.
fn resolve(name: &str, version: c_int, per_thread: bool) -> Option<u64> {
    if name.ends_with("_ptsz") || name.ends_with("_ptds") {
        return None; // by the flag only
    }
    let symbols = symbols();
    let exact = |wanted: &str| symbols.iter().find(|(name, _)| *name == wanted).map(|(_, at)| *at);
    let find = |wanted: &str| {
        let suffixes = if per_thread { &["_ptsz", "_ptds", ""][..] } else { &[""] };
        suffixes.iter().find_map(|suffix| exact(&format!("{wanted}{suffix}")))
    };
    let since = |name: &str| SINCE.iter().find(|(known, _)| *known == name).map_or(0, |(_, v)| *v);
    let suffixed = ["_v4", "_v3", "_v2"].map(|suffix| format!("{name}{suffix}"));
    let mut candidates: Vec<&str> = suffixed.iter().map(String::as_str).collect();
    if name == "cuGraphInstantiate" {
        candidates.insert(0, "cuGraphInstantiateWithFlags");
    }
    let replaced = candidates
        .into_iter()
        .find_map(|candidate| find(candidate).filter(|_| since(candidate) <= version));
    replaced.or_else(|| find(name))
}

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`, the default.
const LEGACY_STREAM: c_ulonglong = 1;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`: the null stream means the thread's own.
const PER_THREAD_DEFAULT_STREAM: c_ulonglong = 2;

unsafe extern "C" fn cuGetProcAddress(
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
) -> Code {
    // SAFETY: the caller's pointers are null or writable; the name is null or a C string.
    unsafe { cuGetProcAddress_v2(name, function, version, flags, std::ptr::null_mut()) }
}

unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
    status: *mut c_int,
) -> Code {
    const FOUND: c_int = 0;
    const NOT_FOUND: c_int = 1;
    if name.is_null()
        || function.is_null()
        || flags & !(LEGACY_STREAM | PER_THREAD_DEFAULT_STREAM) != 0
    {
        return ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, so by the driver's contract a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
    let found = resolve(name, version, flags & PER_THREAD_DEFAULT_STREAM != 0);
    // SAFETY: the caller's pointers are null or writable.
    unsafe {
        let _ = put(function, found.unwrap_or(0) as usize as *mut c_void);
        // A null pointer is for a result that the program does not need.
        let _ = put(status, if found.is_some() { FOUND } else { NOT_FOUND });
    }
    if found.is_some() { SUCCESS } else { ERROR_NOT_FOUND }
}

/// Tables of functions for NVIDIA's own libraries, which are not documented: there is none.
/// Libraries that look one up on their own, such as NVRTC, continue without; others do not, so the
/// refusal names the table.
unsafe extern "C" fn cuGetExportTable(table: *mut *const c_void, id: *const [u8; 16]) -> Code {
    // SAFETY: the caller's pointer is null or to a `CUuuid`.
    if let Some(id) = unsafe { id.as_ref() } {
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        refuse("cuGetExportTable", &format!("the table of functions {id} is not documented"));
    }
    // SAFETY: the caller's pointer is null or writable.
    unsafe { put(table, std::ptr::null()) }.err().unwrap_or(ERROR_NOT_FOUND)
}
