//! R9: cudarc's own copies between the device and pinned memory are uses of a launch: recorded and
//! ordered, and the host does not wait for them.

#![allow(unsafe_code, reason = "asks for the elements that cudarc would copy")]

use std::sync::Arc;

use crate::context::Context;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaStream, HostSlice};
use dmr_buffer::pinned::reap_pinned;
use dmr_buffer::{DeviceBuffer, PinnedBuffer};
use dmr_core::ResourceError;
use dmr_launch::{LaunchError, LaunchRecorder, ReadsAndWrites, Writes};
use dmr_sim::{Policy, Universe};
use dmr_streams::StreamLease;
use dmr_testkit::Rig;

const LEN: usize = 4096;

/// A machine that works as late as it may.
fn lazy() -> Rig {
    Rig::in_universe(&Universe::builder().policy(Policy::Lazy).build().expect("the simulator"))
}

/// Returns the stream of a launch, and one that no pool has.
fn streams(rig: &Rig, launch: &StreamLease) -> [Arc<CudaStream>; 2] {
    [Arc::clone(launch.stream()), rig.device().context().new_stream().unwrap()]
}

#[test]
fn the_host_sees_what_cudarc_copies_into_pinned_memory() {
    let rig = lazy();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    for on in streams(&rig, &home) {
        let theirs = rig.device().context().new_stream().unwrap();
        let slice = theirs.clone_htod(&[3_u8; LEN]).unwrap();
        let mut staging = PinnedBuffer::<u8>::zeroed(&ctx, &home, LEN).unwrap();
        let launch = LaunchRecorder::new_strict(&home);
        rig.universe().reset_calls();
        let copied = launch.launch_with(&ctx, Writes(&mut staging), |_, mut staging| {
            let mut staging = staging.as_pinned().expect("pinned memory");
            assert_eq!(HostSlice::len(&staging), LEN);
            on.memcpy_dtoh(&slice, &mut staging)
        });
        copied.unwrap();
        assert_eq!(rig.universe().calls().count("cuStreamSynchronize"), 0, "the host waits");
        assert_eq!(staging.as_slice().unwrap(), [3; LEN]);
    }
    drop(home);
    reap_pinned(&ctx).unwrap();
    ctx.assert_clean(rig);
}

#[test]
fn the_host_overwrites_pinned_memory_only_when_cudarc_has_copied_it() {
    let rig = lazy();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    for on in streams(&rig, &home) {
        let mut staging = PinnedBuffer::from_slice(&ctx, &home, &[1_u8; LEN]).unwrap();
        let launch = LaunchRecorder::new_strict(&home);
        let upload = launch.launch_with(&ctx, ReadsAndWrites(&mut staging), |_, mut staging| {
            on.clone_htod(&staging.as_pinned().expect("pinned memory"))
        });
        staging.as_mut_slice().unwrap().fill(2);
        assert_eq!(on.clone_dtoh(&upload.unwrap()).unwrap(), [1; LEN]);
    }
    drop(home);
    reap_pinned(&ctx).unwrap();
    ctx.assert_clean(rig);
}

#[test]
fn copies_of_buffers_on_other_streams_do_not_race_with_copies_of_cudarc() {
    for seed in 0..20 {
        let universe = Universe::builder().policy(Policy::Random).seed(seed).build().unwrap();
        let rig = Rig::in_universe(&universe);
        let ctx = Context::tracked(&rig);
        let home = rig.stream();
        let away = rig.stream();
        for on in streams(&rig, &home) {
            let slice = on.clone_htod(&[3_u8; LEN]).unwrap();
            let buffer = DeviceBuffer::from_host(&ctx, &away, &[4_u8; LEN]).unwrap();
            let mut target = DeviceBuffer::<u8>::zeroed(&ctx, &away, LEN).unwrap();
            let mut staging = PinnedBuffer::<u8>::zeroed(&ctx, &home, LEN).unwrap();
            // Behind a write of another stream, and before a read and a write of it.
            staging.copy_from_device(&buffer, &away).unwrap();
            let launch = LaunchRecorder::new_strict(&home);
            let copied = launch.launch_with(&ctx, Writes(&mut staging), |_, mut staging| {
                on.memcpy_dtoh(&slice, &mut staging.as_pinned().expect("pinned memory"))
            });
            copied.unwrap();
            staging.copy_to_device(&mut target, &away).unwrap();
            staging.copy_from_device(&buffer, &away).unwrap();
            assert_eq!(target.to_host(&away).unwrap(), [3; LEN]);
            assert_eq!(staging.as_slice().unwrap(), [4; LEN]);
        }
        drop((home, away));
        reap_pinned(&ctx).unwrap();
        ctx.assert_clean(rig);
    }
}

#[test]
fn device_memory_is_not_pinned() {
    let rig = lazy();
    let ctx = Context::tracked(&rig);
    let mut buffer = DeviceBuffer::<u8>::zeroed(&ctx, ctx.home(), LEN).unwrap();
    let launch = LaunchRecorder::new_strict(ctx.home());
    let launched = launch.launch_with(&ctx, Writes(&mut buffer), |_, mut buffer| {
        assert!(buffer.as_pinned().is_none());
        Ok::<_, ()>(())
    });
    launched.unwrap();
    drop(buffer);
    ctx.assert_clean(rig);
}

#[test]
fn on_a_stream_that_captures_nothing_is_copied_and_the_launch_returns_the_error() {
    let rig = lazy();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let on = rig.device().context().new_stream().unwrap();
    let mut staging = PinnedBuffer::<u8>::zeroed(&ctx, &home, LEN).unwrap();
    let launch = LaunchRecorder::new_strict(&home);
    let launched = launch.launch_with(&ctx, Writes(&mut staging), |_, mut staging| {
        let mut staging = staging.as_pinned().expect("pinned memory");
        on.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        // SAFETY: the elements are not used.
        unsafe {
            assert!(staging.stream_synced_slice(&on).0.is_empty());
            assert!(staging.stream_synced_mut_slice(&on).0.is_empty());
        }
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let _ = on.end_capture(flags);
        Ok::<_, ()>(())
    });
    let Err(LaunchError::View(error)) = launched else { panic!("{launched:?}") };
    assert!(matches!(error, ResourceError::StreamCapturing { .. }), "{error}");
    drop((staging, on, home));
    reap_pinned(&ctx).unwrap();
    ctx.assert_clean(rig);
}

#[test]
fn parts_of_a_pinned_buffer_are_copied_by_cudarc_at_once() {
    let rig = lazy();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let away = rig.stream();
    let slice = home.stream().clone_htod(&[3_u8; LEN / 2]).unwrap();
    let mut staging = PinnedBuffer::<u8>::zeroed(&ctx, &home, LEN).unwrap();
    let mut halves = staging.view_mut();
    let (mut left, mut right) = halves.split_at_mut(LEN / 2).unwrap();
    let first = LaunchRecorder::new_strict(&home);
    let second = LaunchRecorder::new_strict(&away);
    let copied = first.launch_with(&ctx, Writes(&mut left), |on, mut left| {
        on.memcpy_dtoh(&slice, &mut left.as_pinned().expect("pinned memory")).unwrap();
        second.launch_with(&ctx, Writes(&mut right), |on, mut right| {
            on.memcpy_dtoh(&slice, &mut right.as_pinned().expect("pinned memory"))
        })
    });
    copied.unwrap();
    assert_eq!(staging.as_slice().unwrap(), [3; LEN]);
    drop((slice, staging, home, away));
    reap_pinned(&ctx).unwrap();
    ctx.assert_clean(rig);
}
