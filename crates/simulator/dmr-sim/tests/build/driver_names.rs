//! The names of the simulated driver: those that any version of the bindings looks up.
#![allow(unsafe_code)] // the driver is called directly

use std::collections::BTreeSet;
use std::ffi::CString;
use std::path::{Path, PathBuf};

use crate::support::gpu::machine;
use cudarc::driver::sys;

/// Returns the folders of all versions of cudarc in cargo's home: those that any program of this
/// machine uses. `cargo metadata` is not asked: it refuses where packages of other platforms were
/// never downloaded.
fn bindings() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let sources = home.expect("cargo has a home").join("registry/src");
    let entries = |folder: &Path| -> Vec<PathBuf> {
        let found = std::fs::read_dir(folder).into_iter().flatten();
        found.filter_map(|entry| Some(entry.ok()?.path())).collect()
    };
    let is_cudarc = |folder: &PathBuf| {
        folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cudarc"))
    };
    let registries = entries(&sources);
    let found: Vec<_> =
        registries.iter().flat_map(|registry| entries(registry)).filter(is_cudarc).collect();
    assert!(!found.is_empty(), "no cudarc in {}", sources.display());
    found
}

/// Returns the driver's functions that the bindings in this folder look up: the names in string
/// literals.
fn names(bindings: &Path) -> BTreeSet<String> {
    let source = std::fs::read_to_string(bindings.join("src/driver/sys/mod.rs")).expect("bindings");
    let literals = source.split('"').skip(1).step_by(2);
    let names = literals.map(|literal| literal.trim_end_matches("\\0"));
    let is_function = |name: &&str| {
        let rest = name.strip_prefix("cu").unwrap_or_default();
        rest.starts_with(|first: char| first.is_ascii_uppercase())
            && rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    names.filter(is_function).map(str::to_owned).collect()
}

#[test]
fn every_name_that_a_binding_looks_up_exists() {
    let (_universe, _gpu) = machine();
    // SAFETY: the simulated driver is loaded, and stays so.
    let driver =
        unsafe { libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!driver.is_null());
    for folder in bindings() {
        let names = names(&folder);
        assert!(names.len() > 400, "{}: {} names", folder.display(), names.len());
        let exists = |name: &&String| {
            let name = CString::new(name.as_str()).expect("a name");
            // SAFETY: the library is loaded, and the name is a C string.
            !unsafe { libc::dlsym(driver, name.as_ptr()) }.is_null()
        };
        let missing: Vec<_> = names.iter().filter(|name| !exists(name)).collect();
        assert!(missing.is_empty(), "{}: {missing:?}", folder.display());
    }
}

#[test]
fn sim_a_call_that_is_not_simulated_is_refused_and_counted_under_its_name() {
    let (universe, _gpu) = machine();
    let mut object = 0;
    let null = std::ptr::null();
    // SAFETY: the function is refused before it uses its arguments.
    let code = unsafe { sys::cuTexObjectCreate(&mut object, null, null.cast(), null.cast()) };
    assert_eq!(code, sys::CUresult::CUDA_ERROR_NOT_SUPPORTED);
    let refused: Vec<_> = universe.calls().not_supported().collect();
    assert_eq!(refused, [("cuTexObjectCreate", 1)]);
}
