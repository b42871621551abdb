//! D1: a build with `--no-default-features --features direct` has the direct backend, alone and in
//! `Tracked`, the launch recorder and buffers.
//!
//! `cargo xtask direct` runs these tests in that build; all but the first hold in each build.

#![cfg(feature = "direct")]
#![allow(unsafe_code, reason = "the driver's copies take device addresses")]

use std::sync::Arc;

use dmr::cudarc::driver::{DriverError, result};
use dmr::dmr_launch::{LaunchError, PrepareError};
use dmr::prelude::*;
use dmr_testkit::Rig;

const LEN: usize = 1 << 16;

#[test]
#[cfg(not(any(feature = "async", feature = "pool")))]
fn a_direct_build_has_the_direct_backend_and_no_other() {
    let names: Vec<_> = Backend::available().iter().map(|backend| backend.name()).collect();
    assert_eq!(names, ["direct", "direct-tracked"]);
}

/// Copies `from` to `to` on `stream`, declared.
fn copy(
    gpu: &DeviceRuntime,
    stream: &StreamLease,
    from: &DeviceBuffer<u8>,
    to: &mut DeviceBuffer<u8>,
) -> Result<(), LaunchError<DriverError>> {
    let mut launch = LaunchRecorder::new_strict(stream);
    let source = launch.read(from).device_ptr();
    let target = launch.write(to).device_ptr();
    // SAFETY: both buffers have LEN bytes, and their uses are declared.
    launch.launch(gpu, |stream| unsafe {
        result::memcpy_dtod_async(target, source, LEN, stream.cu_stream())
    })
}

#[test]
fn a_launch_reads_what_another_stream_writes_on_the_tracked_direct_backend() {
    let rig = Rig::new();
    let builder = DeviceRuntime::builder(rig.ordinal()).backend(Backend::DirectTracked);
    let gpu = builder.build().unwrap();
    let ops = PatternOps::new(Arc::clone(gpu.streams())).unwrap();
    let [load, compute] = [(); 2].map(|()| gpu.streams().acquire().unwrap());

    let mut written = DeviceBuffer::<u8>::zeroed(&gpu, &load, LEN).unwrap();
    let mut copied = DeviceBuffer::<u8>::zeroed(&gpu, &compute, LEN).unwrap();
    ops.delay(load.id(), 20_000_000).unwrap();
    written.fill(7, &load).unwrap();
    copy(&gpu, &compute, &written, &mut copied).unwrap();
    drop(written);
    assert_eq!(copied.to_host(&compute).unwrap(), [7; LEN]);

    drop((copied, load, compute, ops, gpu));
    rig.assert_clean();
}

#[test]
fn the_bare_direct_backend_refuses_a_launch_and_names_the_tracked_one() {
    let rig = Rig::new();
    let gpu = DeviceRuntime::builder(rig.ordinal()).backend(Backend::Direct).build().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let [from, mut to] = [(); 2].map(|()| DeviceBuffer::<u8>::zeroed(&gpu, &stream, LEN).unwrap());
    let error = copy(&gpu, &stream, &from, &mut to).unwrap_err();
    assert!(matches!(error, LaunchError::Prepare(PrepareError::Untracked { .. })), "{error:?}");
    let message = error.to_string();
    for advice in ["does not track block uses", "`Tracked`", Backend::DirectTracked.name()] {
        assert!(message.contains(advice), "{advice}: {message}");
    }
    drop((from, to, stream, gpu));
    rig.assert_clean();
}
