//! U13, U14: dropping pinned memory makes no driver call: it does not wait, leaves the current
//! context as it is, and ends no capture. None is allocated on a stream that captures.

#![allow(unsafe_code, reason = "captures begin and end in the driver")]

use cudarc::driver::{CudaContext, result, sys};
use dmr_core::{Access, BlockUse, ResourceError};
use dmr_pinned::{PinnedMemory, PinnedPool};
use dmr_sim::Universe;
use dmr_testkit::Rig;

#[test]
fn a_drop_makes_no_driver_call_and_leaves_the_context_current() {
    let universe = Universe::builder().build().unwrap();
    let rig = Rig::in_universe(&universe);
    let [home, user] = [rig.stream(), rig.stream()];
    let pinned = PinnedMemory::new(rig.streams(), 64, home.id()).unwrap();
    let uses = rig.streams().uses();
    let window = [BlockUse::new(pinned.block().id(), Access::Read)];
    uses.finish(uses.prepare(&window, user.id()).unwrap()).unwrap();
    let other = CudaContext::new(universe.ordinal(1)).unwrap();
    other.bind_to_thread().unwrap();
    rig.universe().reset_calls();
    drop(pinned);
    let calls = rig.universe().calls();
    assert_eq!(calls.total(), 0, "{calls:?}");
    assert_eq!(result::ctx::get_current().unwrap(), Some(other.cu_ctx()));
    assert_eq!(PinnedPool::of(rig.streams()).reap_pending(), Ok(64));
    drop((home, user, other));
    rig.assert_clean();
}

/// The driver refuses to make the legacy stream depend on what a blocking stream captures, and ends
/// that capture.
#[test]
fn a_drop_of_memory_of_the_legacy_stream_ends_no_capture() {
    let rig = Rig::simulated();
    let home = rig.streams().adopt_legacy().unwrap();
    let pinned = PinnedMemory::new(rig.streams(), 64, home.id()).unwrap();
    let mut blocking = std::ptr::null_mut();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the driver writes a handle of a stream, which is destroyed below.
    unsafe {
        sys::cuStreamCreate(&mut blocking, 0).result().unwrap();
        result::stream::begin_capture(blocking, mode).unwrap();
    }
    drop(pinned);
    // SAFETY: as above.
    unsafe {
        result::stream::end_capture(blocking).expect("the capture goes on");
        result::stream::destroy(blocking).unwrap();
    }
    assert_eq!(PinnedPool::of(rig.streams()).reap_pending(), Ok(64));
    drop(home);
    rig.assert_clean();
}

#[test]
fn no_pinned_memory_is_allocated_on_a_stream_that_captures() {
    let rig = Rig::simulated();
    let home = rig.stream();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    home.stream().begin_capture(mode).unwrap();
    let refused = PinnedMemory::new(rig.streams(), 64, home.id()).unwrap_err();
    assert!(matches!(refused, ResourceError::StreamCapturing { .. }), "{refused}");
    // SAFETY: the lease keeps the stream alive.
    unsafe { result::stream::end_capture(home.stream().cu_stream()).expect("the capture goes on") };
    drop(PinnedMemory::new(rig.streams(), 64, home.id()).unwrap());
    assert_eq!(PinnedPool::of(rig.streams()).reap_pending(), Ok(64));
    drop(home);
    rig.assert_clean();
}
