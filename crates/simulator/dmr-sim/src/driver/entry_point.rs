//! Driver entry point access: functions by name and version.

use std::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};

use super::refused::refuse;
use super::symbols::symbols;
use super::{chapter, put};
use crate::abi::*;

chapter![cuGetProcAddress, cuGetProcAddress_v2, cuGetExportTable];

/// The functions whose suffix depends on the version that a program asks for: the version of CUDA
/// whose header first replaces the name by the one with the suffix. All other functions have had
/// their highest suffix since before CUDA 11.3, the first version with `cuGetProcAddress`.
const SINCE: &[(&str, c_int)] = &[
    ("cuCtxCreate_v3", c_int::MAX), // by its own name only
    ("cuCtxCreate_v4", 13_000),
    ("cuCtxGetDevice_v2", c_int::MAX),
    ("cuCtxSynchronize_v2", c_int::MAX),
    ("cuDeviceGetUuid_v2", 13_000),
    ("cuEventElapsedTime_v2", 13_000),
    ("cuGetProcAddress_v2", 12_000),
    ("cuGraphAddDependencies_v2", 13_000),
    ("cuGraphAddKernelNode_v2", 12_000),
    ("cuGraphAddNode_v2", 13_000),
    ("cuGraphAddNode_v3", c_int::MAX),
    ("cuGraphExecKernelNodeSetParams_v2", 12_000),
    ("cuGraphExecUpdate_v2", 12_000),
    ("cuGraphGetEdges_v2", 13_000),
    ("cuGraphInstantiateWithFlags", 12_000),
    ("cuGraphKernelNodeGetParams_v2", 12_000),
    ("cuGraphKernelNodeSetParams_v2", 12_000),
    ("cuGraphNodeGetDependencies_v2", 13_000),
    ("cuGraphNodeGetDependentNodes_v2", 13_000),
    ("cuGraphNodeSetParams_v2", c_int::MAX),
    ("cuGraphRemoveDependencies_v2", 13_000),
    ("cuLaunchHostFunc_v2", c_int::MAX),
    ("cuMemAdvise_v2", 13_000),
    ("cuMemPrefetchAsync_v2", 13_000),
    ("cuMemcpy3DBatchAsync_v2", 13_000),
    ("cuMemcpyBatchAsync_v2", 13_000),
    ("cuMulticastBindAddr_v2", c_int::MAX),
    ("cuMulticastBindMem_v2", c_int::MAX),
    ("cuStreamBatchMemOp_v2", 12_000),
    ("cuStreamGetCaptureInfo_v2", 12_000),
    ("cuStreamGetCaptureInfo_v3", 13_000),
    ("cuStreamGetCtx_v2", c_int::MAX),
    ("cuStreamUpdateCaptureDependencies_v2", 13_000),
    ("cuStreamWaitValue32_v2", 12_000),
    ("cuStreamWaitValue64_v2", 12_000),
    ("cuStreamWriteValue32_v2", 12_000),
    ("cuStreamWriteValue64_v2", 12_000),
];

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_the_function_of_the_version_that_is_asked_for() {
        let address = |name: &str| symbols().iter().find(|(known, _)| *known == name).map(|s| s.1);
        for (name, version, symbol) in [
            ("cuInit", 11_030, "cuInit"),
            ("cuMemAlloc", 12_000, "cuMemAlloc_v2"),
            ("cuCtxCreate", 12_080, "cuCtxCreate_v2"),
            ("cuCtxCreate", 13_000, "cuCtxCreate_v4"),
            ("cuCtxCreate_v3", 12_080, "cuCtxCreate_v3"),
            ("cuEventElapsedTime", 12_080, "cuEventElapsedTime"),
            ("cuStreamWaitValue32", 11_080, "cuStreamWaitValue32"),
            ("cuStreamWaitValue32", 12_000, "cuStreamWaitValue32_v2"),
            ("cuCtxSynchronize", 13_040, "cuCtxSynchronize"),
            ("cuGraphInstantiate", 12_000, "cuGraphInstantiateWithFlags"),
        ] {
            assert!(address(symbol).is_some(), "{symbol}");
            assert_eq!(resolve(name, version, false), address(symbol), "{name} of {version}");
        }
        for (name, version, symbol) in [
            ("cuInit", 11_030, "cuInit"),
            ("cuLaunchKernel", 12_000, "cuLaunchKernel_ptsz"),
            ("cuMemcpyHtoD", 12_000, "cuMemcpyHtoD_v2_ptds"),
            ("cuStreamWaitValue32", 11_080, "cuStreamWaitValue32_ptsz"),
            ("cuStreamWaitValue32", 12_000, "cuStreamWaitValue32_v2_ptsz"),
        ] {
            assert!(address(symbol).is_some(), "{symbol}");
            assert_eq!(resolve(name, version, true), address(symbol), "{name} of {version}");
        }
        assert_eq!(resolve("cuNothing", 13_000, true), None);
        assert_eq!(resolve("cuLaunchKernel_ptsz", 13_000, true), None);
    }

    #[test]
    fn every_function_with_a_version_of_its_own_exists() {
        for (name, _) in SINCE {
            assert!(symbols().iter().any(|(known, _)| known == name), "{name}");
        }
    }
}
