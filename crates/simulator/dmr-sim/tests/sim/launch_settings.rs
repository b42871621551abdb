//! The settings of launches of PTX: clusters, the limits of the kernel's text, and the checks and
//! limits of the universe.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::support::gpu::{self, launch_threads, machine, malloc};
use cudarc::driver::sys::{self, CUresult};
use dmr_sim::{ReportKind, Universe};

use CUresult::CUDA_SUCCESS;

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

#[test]
fn sim_a_launch_has_clusters_and_the_limits_of_its_kernel() {
    let (_universe, _gpu) = machine();
    let text = format!(
        "{HEAD}.visible .entry sizes(.param .u64 out) .maxntid 64, 1, 1 {{
             .reg .b32 %r<3>; .reg .b64 %d<3>;
             mov.u32 %r1, %ctaid.x; mov.u32 %r2, %cluster_nctaid.x; ld.param.u64 %d1, [out];
             mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2; st.global.u32 [%d1], %r2; ret; }}"
    );
    let sizes = gpu::kernel(&text, "sizes").unwrap();
    let stream = gpu::stream();
    let mut out = malloc(16).unwrap();
    let mut params: [*mut c_void; 1] = [(&raw mut out).cast()];
    // SAFETY: plain data, for which zero is valid; so for the configuration.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut config: sys::CUlaunchConfig = unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    config.gridDimY = 1;
    config.gridDimZ = 1;
    config.blockDimX = 1;
    config.blockDimY = 1;
    config.blockDimZ = 1;
    config.hStream = stream;
    config.attrs = &mut attribute;
    config.numAttrs = 1;
    let mut launch = |grid, size, threads| {
        // SAFETY: the attribute and the arguments are valid.
        unsafe {
            (*config.attrs).value.clusterDim.x = size;
            (*config.attrs).value.clusterDim.y = 1;
            (*config.attrs).value.clusterDim.z = 1;
            config.gridDimX = grid;
            config.blockDimX = threads;
            sys::cuLaunchKernelEx(&config, sizes, params.as_mut_ptr(), null_mut())
        }
    };
    assert_eq!(launch(4, 3, 1), CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE);
    assert_eq!(launch(32, 32, 1), CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE);
    assert_eq!(launch(4, 2, 65), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(launch(4, 2, 1), CUDA_SUCCESS);
    gpu::sync(stream).unwrap();
    assert_eq!(gpu::read(out, 16).unwrap(), 2_u32.to_le_bytes().repeat(4));
}

/// All threads write their number to one word; `endless` never ends.
fn checked(make: impl FnOnce(dmr_sim::UniverseBuilder) -> dmr_sim::UniverseBuilder) -> Vec<String> {
    let universe = make(Universe::builder().devices(1)).build().unwrap();
    let _gpu = gpu::Gpu::new(&universe);
    let text = format!(
        "{HEAD}.visible .entry race(.param .u64 out) {{
             .reg .b32 %r; .reg .b64 %d;
             ld.param.u64 %d, [out]; mov.u32 %r, %tid.x; st.global.u32 [%d], %r; ret; }}
         .visible .entry endless() {{ again: bra again; }}"
    );
    let stream = gpu::stream();
    let out = malloc(4).unwrap();
    launch_threads(gpu::kernel(&text, "race").unwrap(), 1, 32, &[out], stream).unwrap();
    gpu::sync(stream).unwrap();
    let _ = gpu::read(out, 4).unwrap();
    let _ = launch_threads(gpu::kernel(&text, "endless").unwrap(), 1, 1, &[], stream);
    let code = gpu::code(gpu::sync(stream));
    assert_eq!(code, Some(CUresult::CUDA_ERROR_LAUNCH_TIMEOUT as i32));
    let mut reports = universe.finish().reports;
    reports.retain(|report| report.kind != ReportKind::Leak);
    reports.iter().map(ToString::to_string).collect()
}

#[test]
fn sim_checks_limits_and_kinds_of_findings_are_set_for_a_universe() {
    let limits = || {
        let mut limits = dmr_sim::Limits::default();
        limits.instructions = 1000;
        limits
    };
    let found = checked(|builder| builder.limits(limits()));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("race: "), "{found:?}");
    assert!(found[1].contains("the limit of 1000 warp instructions"), "{found:?}");
    let mut checks = dmr_sim::Checks::all();
    checks.global_races = false;
    let found = checked(|builder| builder.limits(limits()).checks(checks));
    assert_eq!(found.len(), 1, "{found:?}");
    let found = checked(|builder| builder.limits(limits()).ignore(ReportKind::KernelFault));
    assert!(found.is_empty(), "{found:?}");
}
