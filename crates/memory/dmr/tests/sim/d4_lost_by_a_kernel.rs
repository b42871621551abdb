//! D4: where a kernel loses a simulated device, the error names the finding.

#![cfg(all(feature = "async", feature = "direct", feature = "pool"))]
#![allow(unsafe_code, reason = "launches a kernel")]

use std::sync::Arc;

use dmr::cudarc::driver::LaunchConfig;
use dmr::cudarc::nvrtc::Ptx;
use dmr::prelude::*;
use dmr_testkit::Rig;

/// Writes far behind its four bytes of shared memory.
const OVERRUN: &str = "
.version 7.0
.target sm_50
.address_size 64
.visible .entry overrun() {
    .shared .align 4 .b8 cell[4];
    .reg .b32 %at;
    mov.u32 %at, cell;
    st.shared.u32 [%at+1048576], 1;
    ret;
}";

/// Launches the kernel, and returns the error of the next calls on the device and on the resource.
fn errors(backend: Backend) -> [ResourceError; 2] {
    let rig = Rig::simulated();
    let builder = DeviceRuntime::builder(rig.ordinal()).backend(backend);
    let gpu = builder.with_streams(Arc::clone(rig.streams())).build().unwrap();
    let stream = rig.stream();
    let module = gpu.device().context().load_module(Ptx::from_src(OVERRUN)).unwrap();
    let overrun = module.load_function("overrun").unwrap();
    // SAFETY: on the simulated driver, which reports the overrun.
    unsafe { stream.stream().launch_builder(&overrun).launch(LaunchConfig::for_num_elems(1)) }
        .unwrap();
    let first = gpu.device().synchronize().unwrap_err();
    let second = gpu.resource().allocate(64, stream.id(), AllocTag::UNTAGGED).unwrap_err();
    assert_eq!(rig.universe().reports().len(), 1, "one finding");
    [first, second]
}

#[test]
fn the_error_of_a_lost_device_names_kernel_line_and_kind() {
    for backend in [Backend::Pool, Backend::Async, Backend::DirectTracked] {
        for error in errors(backend) {
            assert!(matches!(error, ResourceError::DeviceLost { .. }), "{error}");
            let text = error.to_string();
            for part in ["returned 700", "a kernel has failed", "launch: kernel overrun", "line 9"]
            {
                assert!(text.contains(part), "{backend:?}: no {part:?} in: {text}");
            }
        }
    }
}

#[test]
fn a_device_that_a_test_has_lost_has_no_finding() {
    let rig = Rig::simulated();
    rig.universe().lose_device(0, 700);
    let error = rig.device().synchronize().unwrap_err();
    assert!(matches!(error, ResourceError::DeviceLost { finding: None, .. }), "{error}");
}

#[test]
fn the_finding_in_an_error_does_not_count_as_read() {
    let dropped = std::panic::catch_unwind(errors_unread).unwrap_err();
    let text = dropped.downcast_ref::<String>().expect("the universe's message");
    assert!(text.contains("its findings were not read"), "{text}");
}

fn errors_unread() {
    let rig = Rig::simulated();
    let module = rig.device().context().load_module(Ptx::from_src(OVERRUN)).unwrap();
    let overrun = module.load_function("overrun").unwrap();
    let stream = rig.stream();
    // SAFETY: on the simulated driver, which reports the overrun.
    unsafe { stream.stream().launch_builder(&overrun).launch(LaunchConfig::for_num_elems(1)) }
        .unwrap();
    assert!(rig.device().synchronize().is_err());
}
