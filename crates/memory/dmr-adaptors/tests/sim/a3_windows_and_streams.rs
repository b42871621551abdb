//! The guard's work where blocks are deallocated inside windows, streams end, capture, or are lost.

#![cfg(feature = "debug-guard")]
#![allow(unsafe_code, reason = "captures begin and end in the driver")]

use crate::a3;
use std::sync::Arc;

use crate::a3::{BACKENDS, BOTH, Backend, Hooked, Memory, Moment, TAG, TRACKING, guarded};
use cudarc::driver::{result, sys};
use dmr_adaptors::guard::{DebugGuardLayer, GuardChecks};
use dmr_core::{
    Access, BlockState, BlockUse, CorruptionKind, DeviceMemoryResource, DeviceOps, ResourceError,
    UseTrackingExt,
};
use dmr_testkit::Rig;

/// A program that is clean without the guard is clean with it: allocation counts as a write on the
/// home stream that a later event may cover, and the guard's own fill does not take its place.
#[test]
fn unrecorded_work_on_the_home_stream_stays_covered_by_the_allocation() {
    for (backend, checks) in TRACKING.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::simulated();
        let guard = backend.guarded(&rig, checks);
        let [home, other] = [rig.stream(), rig.stream()];
        let block = guard.allocate(1000, home.id(), TAG).unwrap();
        rig.ops().fill_pattern(&block, 0..1000, 1, home.id()).unwrap();
        let token = guard.prepare_block_use(block.id(), other.id(), Access::Write).unwrap();
        rig.ops().fill_pattern(&block, 0..1000, 2, other.id()).unwrap();
        guard.finish_uses(token).unwrap();
        guard.deallocate(block).unwrap();
        guard.reap_pending().unwrap();
        drop((guard, home, other));
        rig.assert_clean();
    }
}

#[test]
fn the_first_use_elsewhere_waits_for_the_guards_fill_whatever_was_recorded_before_it() {
    for (backend, checks) in TRACKING.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::simulated();
        let [home, other] = [rig.stream(), rig.stream()];
        let inner = Arc::new(backend.make(&rig));
        let another = inner.allocate(100, home.id(), TAG).unwrap();
        let resource = Arc::clone(&inner);
        let used = another.id();
        // As another thread does that works on the stream of the fill: it uses another block there.
        let ops = Hooked::new(&rig, move |moment| match moment {
            Moment::BeforeFill(stream) => {
                resource.finish_uses(resource.prepare_block_use(used, stream, Access::ReadWrite)?)
            }
            _ => Ok(()),
        });
        let layer = DebugGuardLayer::new(ops).with_checks(checks);
        let guard = guarded(Arc::clone(&inner), layer);
        let block = guard.allocate(1000, home.id(), TAG).unwrap();
        let token = guard.prepare_block_use(block.id(), other.id(), Access::Write).unwrap();
        rig.ops().fill_pattern(&block, 0..1000, 2, other.id()).unwrap();
        guard.finish_uses(token).unwrap();
        guard.deallocate(block).unwrap();
        guard.reap_pending().unwrap();
        drop(guard);
        inner.deallocate(another).unwrap();
        inner.reap_pending().unwrap();
        drop((inner, home, other));
        rig.assert_clean();
    }
}

#[test]
fn work_of_a_window_that_is_still_open_is_no_write_after_free() {
    for (backend, checks) in TRACKING.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::simulated();
        let guard = backend.guarded(&rig, checks);
        let [home, other] = [rig.stream(), rig.stream()];
        // On the home stream as well: windows of one stream nest, so nothing would refuse.
        for stream in [&home, &other] {
            for cancelled in [false, true] {
                let block = guard.allocate(1000, home.id(), TAG).unwrap();
                let late = Memory::of(&block).again();
                let id = block.id();
                let uses = [BlockUse::new(id, Access::Write)];
                let tokens = guard.prepare_uses(&uses, stream.id()).unwrap();
                assert_eq!(guard.deallocate(block).unwrap(), BlockState::Retired);
                assert_eq!((guard.usage().live, guard.usage().retired), (0, 1000));
                assert!(guard.is_retired(id));
                assert_eq!(guard.reap_pending(), Ok(0));
                assert_eq!(guard.check_all(), Ok(Vec::new()));
                if cancelled {
                    guard.cancel_uses(tokens).unwrap();
                } else {
                    rig.ops().fill_pattern(&late, 0..1000, 9, stream.id()).unwrap();
                    guard.finish_uses(tokens).unwrap();
                }
                assert_eq!(guard.reap_pending(), Ok(1000));
                assert_eq!(guard.bytes_outstanding(), 0);
            }
        }
        assert_eq!(guard.violations(), []);
        drop((guard, home, other));
        rig.assert_clean();
    }
}

#[test]
fn what_such_a_window_writes_outside_is_found_by_a_reap() {
    for (backend, checks) in TRACKING.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::simulated();
        let guard = backend.guarded(&rig, checks);
        let [home, other] = [rig.stream(), rig.stream()];
        let block = guard.allocate(1000, home.id(), TAG).unwrap();
        let memory = Memory::of(&block);
        let token = guard.prepare_block_use(block.id(), other.id(), Access::Write).unwrap();
        guard.deallocate(block).unwrap();
        memory.write(&rig, 1000, &other);
        guard.finish_uses(token).unwrap();
        match guard.reap_pending() {
            Err(ResourceError::Corrupted(found)) => {
                assert_eq!((found.kind, found.offset), (CorruptionKind::Overrun, 1000));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(guard.reap_pending(), Ok(0));
        drop((guard, home, other));
        rig.assert_clean();
    }
}

#[test]
fn a_window_that_was_opened_upstream_is_waited_for() {
    let rig = Rig::simulated();
    let guard = Backend::Async.guarded(&rig, GuardChecks::Immediate);
    let [home, other] = [rig.stream(), rig.stream()];
    let block = guard.allocate(1000, home.id(), TAG).unwrap();
    let inner = guard.upstream();
    let token = inner.prepare_block_use(block.id(), other.id(), Access::Write).unwrap();
    assert_eq!(guard.deallocate(block).unwrap(), BlockState::Retired);
    assert_eq!(guard.reap_pending(), Ok(0));
    inner.finish_uses(token).unwrap();
    assert_eq!(guard.reap_pending(), Ok(1000));
    drop((guard, home, other));
    rig.assert_clean();
}

#[test]
fn a_forgotten_token_leaks_its_block_and_nothing_else() {
    let rig = Rig::simulated();
    let guard = Backend::Async.guarded(&rig, GuardChecks::Immediate);
    let [home, other] = [rig.stream(), rig.stream()];
    let block = guard.allocate(1000, home.id(), TAG).unwrap();
    drop(guard.prepare_block_use(block.id(), other.id(), Access::Write).unwrap());
    guard.deallocate(block).unwrap();
    for _ in 0..10 {
        guard.deallocate(guard.allocate(10, home.id(), TAG).unwrap()).unwrap();
    }
    assert_eq!(guard.reap_pending(), Ok(100));
    assert_eq!(guard.usage().retired, 1000);
    drop((guard, home, other));
    assert_eq!(rig.verdict(), Ok(()));
}

#[test]
fn a_block_is_checked_also_after_the_lease_of_its_home_stream_was_returned() {
    for (backend, checks) in BACKENDS.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::simulated();
        let guard = backend.guarded(&rig, checks);
        let _first = rig.stream();
        let home = rig.stream();
        let [clean, block] = [0, 1].map(|_| guard.allocate(100, home.id(), TAG).unwrap());
        Memory::of(&block).write(&rig, 100, &home);
        drop(home);
        guard.deallocate(clean).unwrap();
        if let Err(refused) = guard.deallocate(block) {
            guard.deallocate(refused.block).unwrap();
        }
        let _ = guard.reap_pending();
        assert_eq!(guard.violations().len(), 1, "{backend:?} {checks:?}");
        assert_eq!((guard.unchecked_blocks(), guard.bytes_outstanding()), (0, 0));
        drop((guard, _first));
        rig.assert_clean();
    }
}

#[test]
fn a_block_is_checked_also_after_its_home_stream_was_retired() {
    for (backend, checks) in TRACKING.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::simulated();
        let guard = backend.guarded(&rig, checks);
        let _first = rig.stream();
        let home = rig.streams().adopt_legacy().unwrap();
        let [held, live] = [0, 1].map(|_| guard.allocate(100, home.id(), TAG).unwrap());
        Memory::of(&live).write(&rig, 100, &home);
        guard.deallocate(held).unwrap();
        rig.streams().retire_stream(&home).unwrap();
        if let Err(refused) = guard.deallocate(live) {
            guard.deallocate(refused.block).unwrap();
        }
        let _ = guard.reap_pending();
        assert_eq!(guard.violations().len(), 1, "{backend:?} {checks:?}");
        assert_eq!((guard.unchecked_blocks(), guard.bytes_outstanding()), (0, 0));
        drop((guard, home, _first));
        rig.assert_clean();
    }
}

#[test]
fn nothing_of_the_guards_work_becomes_part_of_a_graph() {
    for (backend, checks) in BACKENDS.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::simulated();
        let guard = backend.guarded(&rig, checks);
        let [home, other] = [rig.stream(), rig.stream()];
        let [held, live] = [0, 1].map(|_| guard.allocate(100, home.id(), TAG).unwrap());
        guard.deallocate(held).unwrap();
        let before = guard.usage();
        let handle = home.stream().cu_stream();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the lease keeps the stream alive.
        unsafe { result::stream::begin_capture(handle, mode) }.unwrap();
        let submitted = || {
            let calls = rig.universe().calls();
            ["cuLaunchKernel", "cuMemsetD32Async", "cuMemsetD8Async"].map(|call| calls.count(call))
        };
        let submitted_before = submitted();
        let capturing = |error: &ResourceError| {
            assert!(matches!(error, ResourceError::StreamCapturing { .. }), "{backend:?}: {error}");
        };
        capturing(&guard.allocate(10, home.id(), TAG).unwrap_err());
        let refused = guard.deallocate(live).unwrap_err();
        capturing(&refused.error);
        capturing(&guard.reap_pending().unwrap_err());
        capturing(&guard.check_all().unwrap_err());
        let usage = guard.usage();
        assert_eq!((usage.live, usage.retired), (before.live, before.retired));
        assert_eq!(submitted(), submitted_before);
        // Other streams go on.
        guard.deallocate(guard.allocate(10, other.id(), TAG).unwrap()).unwrap();
        // SAFETY: as above.
        unsafe { result::stream::end_capture(handle) }.unwrap();
        guard.deallocate(refused.block).unwrap();
        guard.reap_pending().unwrap();
        assert_eq!((guard.bytes_outstanding(), guard.violations().len()), (0, 0));
        drop((guard, home, other));
        rig.assert_clean();
    }
}

#[test]
fn a_capture_of_a_stream_with_checks_under_way_does_not_delay_what_another_blocks_check_finds() {
    for checks in BOTH {
        let rig = Rig::simulated();
        let config = a3::layer(&rig).with_checks(checks).with_quarantine(1 << 20, 1);
        let guard = a3::guarded(Backend::Async.make(&rig), config);
        let [home, other] = [rig.stream(), rig.stream()];
        // The second pushes the first out of the quarantine: a check is under way on `home`.
        for _ in 0..2 {
            guard.deallocate(guard.allocate(100, home.id(), TAG).unwrap()).unwrap();
        }
        let block = guard.allocate(100, other.id(), TAG).unwrap();
        Memory::of(&block).write(&rig, -1, &other);
        let handle = home.stream().cu_stream();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the lease keeps the stream alive.
        unsafe { result::stream::begin_capture(handle, mode) }.unwrap();
        let refused = guard.deallocate(block).map_err(|refused| (refused.error, refused.block));
        assert_eq!(refused.is_err(), checks == GuardChecks::Immediate);
        // SAFETY: as above.
        unsafe { result::stream::end_capture(handle) }.unwrap();
        match refused {
            Ok(_) => assert!(matches!(guard.reap_pending(), Err(ResourceError::Corrupted(_)))),
            Err((error, block)) => {
                assert!(matches!(error, ResourceError::Corrupted(_)), "{error}");
                guard.deallocate(block).unwrap();
                guard.reap_pending().unwrap();
            }
        }
        assert_eq!(guard.reap_pending(), Ok(0));
        assert_eq!(guard.violations().len(), 1);
        drop((guard, home, other));
        rig.assert_clean();
    }
}

/// A window that is not closed stays open, for the guard too (D4, U7).
#[test]
fn a_window_whose_tokens_were_dropped_stays_open() {
    const ILLEGAL_ADDRESS: i32 = 700;
    for backend in TRACKING {
        let rig = Rig::simulated();
        let guard = backend.guarded(&rig, GuardChecks::Immediate);
        let [home, other] = [rig.stream(), rig.stream()];
        let block = guard.allocate(100, home.id(), TAG).unwrap();
        let id = block.id();
        drop(guard.prepare_uses(&[BlockUse::new(id, Access::Write)], other.id()).unwrap());
        rig.universe().fail_nth("cuEventRecord", 1, ILLEGAL_ADDRESS);
        let _ = guard.allocate(100, home.id(), TAG);
        rig.universe().clear_faults();
        assert!(rig.device().is_lost());
        assert_eq!(guard.deallocate(block).unwrap(), BlockState::Retired);
        let _ = guard.reap_pending();
        assert!(guard.is_retired(id), "a window is open on it");
        assert_eq!(guard.unchecked_blocks(), 0);
    }
}

#[test]
fn on_a_lost_device_blocks_are_deallocated_unchecked() {
    const ILLEGAL_ADDRESS: i32 = 700;
    for (backend, checks) in BACKENDS.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::simulated();
        let guard = backend.guarded(&rig, checks);
        let [home, other] = [rig.stream(), rig.stream()];
        let blocks = [0, 1, 2, 3].map(|_| guard.allocate(100, home.id(), TAG).unwrap());
        let [held, finds_out, later, used] = blocks;
        let token = (backend != Backend::Direct)
            .then(|| guard.prepare_block_use(used.id(), other.id(), Access::Write).unwrap());
        guard.deallocate(used).unwrap();
        guard.deallocate(held).unwrap();
        rig.universe().fail_nth("cuLaunchKernel", 1, ILLEGAL_ADDRESS);
        guard.deallocate(finds_out).unwrap();
        rig.universe().clear_faults();
        assert!(rig.device().is_lost());
        let refused = guard.allocate(100, home.id(), TAG).unwrap_err();
        assert!(matches!(refused, ResourceError::DeviceLost { .. }), "{refused}");
        let id = later.id();
        guard.deallocate(later).unwrap();
        let _ = guard.try_reap();
        assert!(backend != Backend::Async || !guard.is_retired(id), "the next reap frees it (D4)");
        if let Some(token) = token {
            assert!(guard.finish_uses(token).is_err());
        }
        let _ = guard.reap_pending();
        assert_eq!((guard.usage().live, guard.violations().len()), (0, 0));
        if backend != Backend::Direct && backend != Backend::TrackedDirect {
            assert_eq!(guard.bytes_outstanding(), 0, "{backend:?} {checks:?}");
        }
    }
}
