//! D9, simulated: no order of a growth is missing, no failing call loses memory or data, and
//! nothing is submitted to a stream that captures a graph.

#![cfg(all(feature = "async", feature = "direct", feature = "pool"))]

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use dmr::DeviceRuntimeBuilder;
use dmr::dmr_buffer::BufferError;
use dmr::prelude::*;
use dmr_sim::{Policy, Universe};
use dmr_testkit::{Rig, for_each_driver_call};

const KIB: usize = 1 << 10;

type Choose = fn(DeviceRuntimeBuilder) -> DeviceRuntimeBuilder;

/// With and without use tracking; blocks that move, and blocks that grow in place.
const STACKS: [(&str, Choose); 5] = [
    ("direct", |it| it.backend(Backend::Direct)),
    ("direct-tracked", |it| it.backend(Backend::DirectTracked)),
    ("async", |it| it.backend(Backend::Async)),
    // The pool reports its blocks to the simulator, so none grows in place.
    ("observed pool", |it| it.backend(Backend::Pool)),
    ("pool", |it| it.backend(Backend::Pool).without_observer()),
];

fn runtime(rig: &Rig, choose: Choose) -> DeviceRuntime {
    let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
    choose(builder).build().unwrap()
}

#[test]
fn a_growing_buffer_races_with_nothing() {
    for (name, choose) in STACKS {
        for seed in 0..20 {
            let universe = Universe::builder().policy(Policy::Random).seed(seed).build().unwrap();
            let rig = Rig::in_universe(&universe);
            let runtime = runtime(&rig, choose);
            let tracks = runtime.resource().supports_block_use_tracking();
            let [home, other] = [(); 2].map(|()| runtime.streams().acquire().unwrap());
            let elsewhere = if tracks { &other } else { &home };
            let mut column = DeviceBuffer::<u8>::zeroed(&runtime, &home, KIB).unwrap();
            for round in 1..6u8 {
                let stream = if round % 2 == 0 { &home } else { elsewhere };
                column.fill_bytes(round, stream).unwrap();
                column.reserve(KIB, stream).unwrap();
                // The memory that the column has left serves others at once.
                let mut next = DeviceBuffer::<u8>::uninit(&runtime, &home, KIB).unwrap();
                next.fill_bytes(0xee, &home).unwrap();
                let reader = if round % 2 == 0 { elsewhere } else { &home };
                column.extend_from(&next, reader).unwrap();
                let host = column.to_host(reader).unwrap();
                let old = column.len() - KIB;
                assert!(host[..old].iter().all(|byte| *byte == round), "{name}");
                assert!(host[old..].iter().all(|byte| *byte == 0xee), "{name}");
            }
            drop((column, home, other, runtime));
            rig.assert_clean();
        }
    }
}

#[test]
fn no_driver_call_that_fails_loses_memory_or_data() {
    for (name, choose) in STACKS {
        let prepare = |rig: &Rig| {
            let runtime = runtime(rig, choose);
            let home = runtime.streams().acquire().unwrap();
            let column = DeviceBuffer::from_host(&runtime, &home, &[7u8; KIB]).unwrap();
            (runtime, home, column)
        };
        let failed = for_each_driver_call(999, prepare, |rig, (runtime, home, mut column)| {
            let before = format!("{column:?}");
            if column.reserve(64 * KIB, &home).is_err() {
                assert_eq!(format!("{column:?}"), before, "{name}");
                column.reserve(64 * KIB, &home).unwrap();
            }
            let len = column.len();
            if column.extend_from_host(&[9; KIB], &home).is_err() {
                assert_eq!(column.len(), len, "{name}");
                column.extend_from_host(&[9; KIB], &home).unwrap();
            }
            let host = column.to_host(&home).or_else(|_| column.to_host(&home)).unwrap();
            assert_eq!(host, [[7; KIB], [9; KIB]].concat(), "{name}");
            drop(column);
            for failure in take_drop_failures() {
                failure.retry().unwrap();
            }
            let resource = runtime.resource();
            resource.reap_pending().or_else(|_| resource.reap_pending()).unwrap();
            assert_eq!(resource.bytes_outstanding(), 0, "{name}");
            // What a drop cannot free, no later call can.
            rig.universe().clear_faults();
            drop((home, runtime));
            let verdict = rig.universe().finish();
            assert!(verdict.is_clean(), "{name}: {verdict}");
        });
        assert!(failed >= 5, "{name}: {failed} calls were failed");
    }
}

#[test]
fn a_buffer_does_not_grow_on_a_stream_that_captures() {
    for (name, choose) in STACKS {
        let rig = Rig::simulated();
        let runtime = runtime(&rig, choose);
        let home = runtime.streams().acquire().unwrap();
        let mut column = DeviceBuffer::from_host(&runtime, &home, &[7u8; KIB]).unwrap();
        let before = format!("{column:?}");
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        home.stream().begin_capture(mode).unwrap();
        let refused = column.reserve(KIB, &home).unwrap_err();
        let is_capturing =
            matches!(refused, BufferError::Resource(ResourceError::StreamCapturing { .. }));
        assert!(is_capturing, "{name}: {refused}");
        assert_eq!(format!("{column:?}"), before, "{name}");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        home.stream().end_capture(flags).expect("the capture is valid");
        column.reserve(KIB, &home).unwrap();
        assert_eq!(column.to_host(&home).unwrap(), [7; KIB], "{name}");
        drop((column, home, runtime));
        rig.assert_clean();
    }
}
