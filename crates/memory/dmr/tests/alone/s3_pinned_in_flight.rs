//! S3, U13: what becomes of pinned memory in flight when its streams go, on a machine that works as
//! late as it may.

#![cfg(feature = "async")]

use crate::alone;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode, CUstreamCaptureStatus};
use dmr::dmr_buffer::pinned::reap_orphaned_pinned;
use dmr::dmr_core::{Access, BlockUse};
use dmr::dmr_pinned::PinnedPool;
use dmr::dmr_streams::{MemoryOrigin, TrackedMemory};
use dmr::prelude::*;
use dmr_sim::{Policy, Universe};

const LEN: usize = 4096;

/// A copy from a pinned buffer to the device that has not begun when all its owners are gone. The
/// calls that dropping them makes are counted.
fn drop_everything_in_flight(universe: &Universe, away: bool) {
    let ordinal = universe.ordinal(0);
    let runtime = DeviceRuntime::builder(ordinal).backend(Backend::Async).build().unwrap();
    let leases = [(); 2].map(|()| runtime.streams().acquire().unwrap());
    let stream = &leases[usize::from(away)];
    let mut buffer = DeviceBuffer::<u8>::uninit(&runtime, stream, LEN).unwrap();
    let pinned = PinnedBuffer::from_slice(&runtime, &leases[0], &[7u8; LEN]).unwrap();
    pinned.copy_to_device(&mut buffer, stream).unwrap();
    universe.reset_calls();
}

fn lazy() -> Universe {
    Universe::builder().policy(Policy::Lazy).build().unwrap()
}

#[test]
fn dropping_it_waits_for_nothing_and_frees_nothing_that_is_in_use() {
    let _alone = alone();
    for away in [false, true] {
        let universe = lazy();
        drop_everything_in_flight(&universe, away);
        let calls = universe.calls();
        for waiting in ["cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"] {
            assert_eq!(calls.count(waiting), 0, "{waiting}");
        }
        assert_eq!(calls.count("cuMemFreeHost"), 0);
        reap_orphaned_pinned().unwrap();
        assert_eq!(universe.calls().count("cuMemFreeHost"), 1);
        let verdict = universe.finish();
        assert!(verdict.is_clean(), "{verdict}");
    }
}

#[test]
fn the_next_segment_of_any_runtime_frees_it_once_it_is_done() {
    let _alone = alone();
    for away in [false, true] {
        let universe = lazy();
        drop_everything_in_flight(&universe, away);
        let other = DeviceRuntime::builder(universe.ordinal(1)).build().unwrap();
        // Each needs a segment of its own.
        let make = || PinnedBuffer::<u8>::uninit(&other, other.streams().default_stream(), 2 << 20);
        let first = make().unwrap();
        assert_eq!(universe.calls().count("cuMemFreeHost"), 0);
        let _ = universe.finish();
        let second = make().unwrap();
        assert_eq!(universe.calls().count("cuMemFreeHost"), 1);
        drop((first, second, other));
        let verdict = universe.finish();
        assert!(verdict.is_clean(), "{verdict}");
    }
}

#[test]
fn memory_under_a_forgotten_window_leaks_and_is_not_freed() {
    let _alone = alone();
    let universe = lazy();
    let runtime = DeviceRuntime::builder(universe.ordinal(0)).build().unwrap();
    let home = runtime.streams().default_stream();
    let pinned = PinnedBuffer::from_slice(&runtime, home, &[7u8; LEN]).unwrap();
    let MemoryOrigin::Pinned(id) = pinned.origin() else { panic!("no block") };
    let uses = [BlockUse::new(id, Access::Read)];
    let tokens = runtime.streams().uses().prepare(&uses, home).unwrap();
    drop((pinned, runtime, tokens));
    reap_orphaned_pinned().unwrap();
    assert_eq!(universe.calls().count("cuMemFreeHost"), 0);
    let leaks = universe.finish().reports;
    // The block, in whose place the segment is left.
    assert_eq!(leaks.iter().map(|leak| leak.bytes).collect::<Vec<_>>(), [LEN as u64], "{leaks:?}");
}

#[test]
fn what_a_lost_device_leaves_is_forgotten() {
    let _alone = alone();
    for lost_first in [false, true] {
        let universe = lazy();
        let runtime = DeviceRuntime::builder(universe.ordinal(0)).backend(Backend::Async);
        let runtime = runtime.build().unwrap();
        let home = runtime.streams().default_stream();
        let device = runtime.device().clone();
        let mut buffer = DeviceBuffer::<u8>::uninit(&runtime, home, LEN).unwrap();
        let pinned = PinnedBuffer::from_slice(&runtime, home, &[7u8; LEN]).unwrap();
        pinned.copy_to_device(&mut buffer, home).unwrap();
        if lost_first {
            universe.lose_device(0, 700);
            device.synchronize().unwrap_err();
        }
        drop((pinned, buffer, runtime));
        universe.lose_device(0, 700);
        assert_eq!(reap_orphaned_pinned(), Ok(0), "lost first: {lost_first}");
        universe.reset_calls();
        assert_eq!(reap_orphaned_pinned(), Ok(0), "lost first: {lost_first}");
        assert_eq!(universe.calls().total(), 0, "lost first: {lost_first}");
    }
}

/// To ask the driver whether a stream is idle ends a capture on it, in every mode.
#[test]
fn reaps_and_allocations_of_other_threads_end_no_capture_on_the_home_stream() {
    let _alone = alone();
    let reaps: [fn(&DeviceRuntime) -> bool; 3] = [
        |runtime| {
            PinnedPool::of(runtime.streams()).try_reap().is_err_and(|error| is_capturing(&error))
        },
        |runtime| {
            PinnedPool::of(runtime.streams())
                .reap_pending()
                .is_err_and(|error| is_capturing(&error))
        },
        |runtime| {
            let other = runtime.streams().default_stream();
            PinnedBuffer::<u8>::zeroed(runtime, other, LEN).is_ok()
        },
    ];
    for reaps_as_it_should in reaps {
        let universe = lazy();
        let runtime = DeviceRuntime::builder(universe.ordinal(0)).build().unwrap();
        let leases = [(); 2].map(|()| runtime.streams().acquire().unwrap());
        let home = &leases[1];
        let pinned = PinnedBuffer::from_slice(&runtime, home, &[7u8; LEN]).unwrap();
        home.stream().begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        drop(pinned);
        assert!(reaps_as_it_should(&runtime));
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let active = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
        assert_eq!(home.stream().capture_status().unwrap(), active);
        // Graphs are not simulated.
        let _ = home.stream().end_capture(flags);
        assert!(PinnedPool::of(runtime.streams()).reap_pending().unwrap() >= LEN as u64);
        drop((leases, runtime));
        let verdict = universe.finish();
        assert!(verdict.is_clean(), "{verdict}");
    }
}

fn is_capturing(error: &ResourceError) -> bool {
    matches!(error, ResourceError::StreamCapturing { .. })
}
