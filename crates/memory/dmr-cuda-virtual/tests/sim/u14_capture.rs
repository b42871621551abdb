//! U14: on a capturing stream nothing is allocated and nothing freed; blocks that were deallocated
//! before are kept until the capture has ended.

#![allow(unsafe_code, reason = "begins and ends captures")]

use crate::support::{TAG, resource};
use cudarc::driver::{result, sys};
use dmr_core::{DeviceMemoryResource, DeviceOps, ResourceError, ResourceResult};
use dmr_streams::StreamLease;
use dmr_testkit::Rig;

fn begin(stream: &StreamLease) {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the lease keeps the stream alive.
    unsafe { result::stream::begin_capture(stream.stream().cu_stream(), mode) }.unwrap();
}

fn end(stream: &StreamLease) {
    // SAFETY: the lease keeps the stream alive.
    unsafe { result::stream::end_capture(stream.stream().cu_stream()) }.unwrap();
}

fn refused<T>(result: ResourceResult<T>) -> bool {
    matches!(result, Err(ResourceError::StreamCapturing { .. }))
}

#[test]
fn a_capturing_stream_is_refused_and_what_it_retired_is_kept() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let stream = rig.stream();
    let other = rig.stream();
    let allocate = |stream: &StreamLease| resource.allocate(100, stream.id(), TAG);
    let held = allocate(&stream).unwrap();
    let retired = allocate(&stream).unwrap();
    let elsewhere = allocate(&other).unwrap();
    let id = retired.id();
    rig.ops().fill_pattern(&retired, 0..100, 1, stream.id()).unwrap();
    resource.deallocate(retired).unwrap();
    begin(&stream);
    assert!(refused(allocate(&stream)));
    let held = resource.deallocate(held).unwrap_err();
    assert!(matches!(held.error, ResourceError::StreamCapturing { .. }), "{held}");
    // Another stream's block goes all the same.
    resource.deallocate(elsewhere).unwrap();
    assert!(refused(resource.reap_pending()));
    assert_eq!((resource.usage().live, resource.usage().retired), (100, 100));
    assert!(resource.is_retired(id));
    end(&stream);
    resource.deallocate(held.block).unwrap();
    assert_eq!(resource.reap_pending(), Ok(200));
    drop((resource, stream, other));
    rig.assert_clean();
}
