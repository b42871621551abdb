//! Functions by name and version, as `cuGetProcAddress` returns them.
#![allow(unsafe_code)] // the driver is called directly

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;

use crate::support::named::call;

#[path = "../../src/driver/since.rs"]
mod since;

const LEGACY_STREAM: u64 = 1;
const PER_THREAD_DEFAULT_STREAM: u64 = 2;

fn resolve(name: &str, version: i32, flags: u64) -> Option<usize> {
    let name = CString::new(name).unwrap();
    let mut found: *mut c_void = null_mut();
    let code = call!(cuGetProcAddress_v2(
        name.as_ptr() => *const c_char, &mut found => *mut *mut c_void, version => i32,
        flags => u64, null_mut() => *mut i32
    ));
    assert_eq!(code == 0, !found.is_null());
    (code == 0).then_some(found.addr())
}

fn addresses() -> HashMap<&'static str, usize> {
    dmr_sim::driver_functions().into_iter().collect()
}

#[test]
fn sim_a_name_stands_for_the_function_of_the_version_that_is_asked_for() {
    let addresses = addresses();
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
        let found = resolve(name, version, LEGACY_STREAM);
        assert_eq!(found, Some(addresses[symbol]), "{name} of {version}");
    }
    for (name, version, symbol) in [
        ("cuInit", 11_030, "cuInit"),
        ("cuLaunchKernel", 12_000, "cuLaunchKernel_ptsz"),
        ("cuMemcpyHtoD", 12_000, "cuMemcpyHtoD_v2_ptds"),
        ("cuStreamWaitValue32", 11_080, "cuStreamWaitValue32_ptsz"),
        ("cuStreamWaitValue32", 12_000, "cuStreamWaitValue32_v2_ptsz"),
    ] {
        let found = resolve(name, version, PER_THREAD_DEFAULT_STREAM);
        assert_eq!(found, Some(addresses[symbol]), "{name} of {version}");
    }
    assert_eq!(resolve("cuNothing", 13_000, PER_THREAD_DEFAULT_STREAM), None);
    assert_eq!(resolve("cuLaunchKernel_ptsz", 13_000, PER_THREAD_DEFAULT_STREAM), None);
}

#[test]
fn sim_every_function_with_a_version_of_its_own_exists() {
    let addresses = addresses();
    for (name, _) in since::SINCE {
        assert!(addresses.contains_key(name), "{name}");
    }
}

#[test]
fn sim_no_function_is_both_simulated_and_refused_and_the_refused_ones_are_sorted() {
    let functions = dmr_sim::driver_functions();
    assert_eq!(addresses().len(), functions.len());
    // The refused ones are the last.
    let refused = functions.iter().position(|(name, _)| *name == "cuArray3DCreate").unwrap();
    assert!(functions[refused..].is_sorted());
}
