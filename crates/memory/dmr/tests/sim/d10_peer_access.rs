//! D10 on the simulator: without permission, without a path, and when a driver call fails.

#![cfg(all(
    feature = "async",
    feature = "budget",
    feature = "direct",
    feature = "logging",
    feature = "pool",
    feature = "nvrtc"
))]
#![allow(unsafe_code, reason = "kernel launches")]

use crate::peers::{BACKENDS, CopyWords, runtime};
use dmr::dmr_core::error::PeerProblem;
use dmr::dmr_streams::TrackedMemory;
use dmr::prelude::*;
use dmr_sim::{ReportKind, Universe};
use dmr_testkit::{Rig, for_each_driver_call_of_two};

const WORDS: u32 = 1024;

/// A kernel of the first device reads `theirs`, of the second. Returns the kinds of the reports.
fn read(rigs: &[Rig; 2], here: &DeviceRuntime, theirs: &DeviceBuffer<u32>) -> Vec<ReportKind> {
    let universe = rigs[0].universe();
    let known = universe.reports().len();
    let kernel = CopyWords::load(&rigs[0]);
    let a = rigs[0].stream();
    rigs[1].device().synchronize().unwrap();
    let mine = DeviceBuffer::<u32>::zeroed(here, &a, WORDS as usize).unwrap();
    // SAFETY: both buffers have that many words; the simulator reports memory without access.
    unsafe { kernel.launch(&a, mine.device_ptr(), theirs.device_ptr(), WORDS) };
    // The home of `theirs` does not wait for this use. Without access the device is lost now.
    let _ = rigs[0].device().synchronize();
    let reports = universe.reports();
    reports[known..].iter().map(|report| report.kind).collect()
}

#[test]
fn without_permission_the_simulator_reports_a_kernel() {
    for backend in BACKENDS {
        let rigs = Rig::simulated_pair();
        let [here, there] = [0, 1].map(|rig: usize| runtime(&rigs[rig], backend));
        let b = rigs[1].stream();
        let theirs = DeviceBuffer::<u32>::zeroed(&there, &b, WORDS as usize).unwrap();
        // Access in the other direction is no permission.
        there.enable_peer_access(&here).unwrap();
        let kind = match backend {
            Backend::Pool => ReportKind::NoAccess,
            _ => ReportKind::NoPeerAccess,
        };
        assert_eq!(read(&rigs, &here, &theirs), [kind], "{backend:?}");
    }
}

#[test]
fn each_backend_makes_the_call_that_its_memory_needs_and_no_other() {
    const CALLS: [&str; 3] = ["cuMemPoolSetAccess", "cuCtxEnablePeerAccess", "cuMemSetAccess"];
    for backend in BACKENDS {
        let rigs = Rig::simulated_pair();
        let [here, there] = [0, 1].map(|rig: usize| runtime(&rigs[rig], backend));
        let theirs = DeviceBuffer::<u32>::zeroed(&there, &rigs[1].stream(), 4).unwrap();
        rigs[0].universe().reset_calls();
        here.enable_peer_access(&there).unwrap();
        let calls = rigs[0].universe().calls();
        let expected = match backend {
            Backend::Async => [1, 0, 0],
            Backend::Pool => [0, 0, 1],
            _ => [0, 1, 0],
        };
        assert_eq!(CALLS.map(|call| calls.count(call)), expected, "{backend:?}");
        drop(theirs);
    }
}

#[test]
fn without_a_path_the_error_names_both_devices_and_nothing_changes() {
    for backend in BACKENDS {
        let rigs = Rig::pair_in(&Universe::builder().peer_paths(false).build().unwrap());
        let [here, there] = [0, 1].map(|rig: usize| runtime(&rigs[rig], backend));
        let refused = here.enable_peer_access(&there).unwrap_err();
        let [first, second] = [0, 1].map(|rig: usize| rigs[rig].ordinal());
        let expected = ResourceError::no_peer_access(first, second, PeerProblem::NoPath);
        assert_eq!(refused, expected, "{backend:?}");
        assert!(!rigs[0].device().can_access_peer(rigs[1].device()).unwrap());
        let a = rigs[0].stream();
        let b = rigs[1].stream();
        let theirs = DeviceBuffer::from_host(&there, &b, &[3u8; 64]).unwrap();
        let mut mine = DeviceBuffer::<u8>::zeroed(&here, &a, 64).unwrap();
        mine.copy_from_peer(&theirs, &b, &a).unwrap();
        assert_eq!(mine.to_host(&a).unwrap(), [3; 64]);
        drop((mine, theirs, a, b, here, there));
        Rig::assert_all_clean(rigs);
    }
}

#[test]
fn the_permission_reaches_the_backend_through_every_layer() {
    let rigs = Rig::simulated_pair();
    let folder = tempfile::tempdir().unwrap();
    let here = runtime(&rigs[0], Backend::Pool);
    let there = DeviceRuntime::builder(rigs[1].ordinal())
        .with_streams(std::sync::Arc::clone(rigs[1].streams()))
        .backend(Backend::Pool)
        .budget(1 << 30)
        .debug_guard()
        .log_csv(folder.path().join("log.csv"))
        .statistics()
        .on_out_of_memory(|_| dmr::dmr_adaptors::callbacks::Response::Decline)
        .build()
        .unwrap();
    let b = rigs[1].stream();
    here.enable_peer_access(&there).unwrap();
    let theirs = DeviceBuffer::<u32>::zeroed(&there, &b, WORDS as usize).unwrap();
    assert_eq!(read(&rigs, &here, &theirs), []);
}

#[test]
fn whatever_driver_call_fails_the_permission_can_be_given_by_the_next_call() {
    for backend in BACKENDS {
        let prepare = |rigs: &[Rig; 2]| {
            let [here, there] = [0, 1].map(|rig: usize| runtime(&rigs[rig], backend));
            let b = rigs[1].stream();
            let theirs: Vec<_> =
                (0..3).map(|_| DeviceBuffer::<u32>::zeroed(&there, &b, 3 << 20).unwrap()).collect();
            (here, there, theirs)
        };
        let failed = for_each_driver_call_of_two(999, prepare, |rigs, (here, there, theirs)| {
            let enable = || here.enable_peer_access(&there);
            enable().or_else(|_| enable()).unwrap();
            rigs[0].universe().clear_faults();
            for theirs in &theirs {
                assert_eq!(read(rigs, &here, theirs), [], "{backend:?}");
            }
        });
        assert!(failed >= 4, "{backend:?}: {failed} calls were failed");
    }
}

/// `cuMemFree` ends the access of other devices before it waits (measured on two H200).
#[test]
fn the_direct_backend_waits_for_the_home_stream_before_it_frees_what_a_peer_may_use() {
    for (enabled, waits) in [(false, 0), (true, 1)] {
        let rigs = Rig::simulated_pair();
        let universe = rigs[0].universe();
        let [here, there] = [0, 1].map(|rig: usize| runtime(&rigs[rig], Backend::Direct));
        if enabled {
            here.enable_peer_access(&there).unwrap();
        }
        let b = rigs[1].stream();
        let theirs = DeviceBuffer::<u32>::zeroed(&there, &b, WORDS as usize).unwrap();
        universe.reset_calls();
        drop(theirs);
        assert_eq!(universe.calls().total(), 0, "a deallocation makes no driver call");
        there.resource().reap_pending().unwrap();
        assert_eq!(universe.calls().count("cuEventSynchronize"), waits);
        assert_eq!(universe.calls().count("cuMemFree_v2"), 1);
        drop((b, here, there));
        Rig::assert_all_clean(rigs);
    }
}
