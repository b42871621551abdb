//! G5: what each call does while a stream captures through the library. The capture stays valid.

#![cfg(all(feature = "pool", feature = "async", feature = "direct", feature = "spill"))]
#![allow(unsafe_code, reason = "captures")]

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard};

use dmr::cudarc::driver::result::memset_d8_async;
use dmr::dmr_graphs::CaptureError;
use dmr::prelude::*;
use dmr_testkit::{Rig, block_on};

use Outcome::{Made, Refused};

const LEN: usize = 1 << 12;

/// On a GPU the tests share a context, and a test that synchronises it ends the captures of others.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[derive(Debug, PartialEq)]
enum Outcome {
    /// The call did what it does.
    Made,
    /// `StreamCapturing`.
    Refused,
    Other(String),
}

fn outcome<T>(result: Result<T, impl Debug>) -> Outcome {
    let Err(error) = result else { return Made };
    match format!("{error:?}") {
        // Wrapped by the errors of buffers, launches and captures.
        error if error.contains("StreamCapturing {") => Refused,
        error => Outcome::Other(error),
    }
}

const BACKENDS: [Backend; 3] = [Backend::Pool, Backend::Async, Backend::DirectTracked];

/// Captures a write of `y` on `b`, with `calls` in the middle. Then the graph runs.
fn while_capturing(
    backend: Backend,
    calls: impl FnOnce(
        &DeviceRuntime,
        [&StreamLease; 2],
        &mut Capture<'_>,
    ) -> Vec<(&'static str, Outcome)>,
) -> Vec<(&'static str, Outcome)> {
    let _alone = alone();
    let rig = Rig::new();
    let gpu = DeviceRuntime::builder(rig.ordinal())
        .backend(backend)
        .budget_on(&Budget::new(64 << 20))
        .statistics()
        .spill()
        .build()
        .unwrap();
    let [a, b] = [gpu.streams().acquire().unwrap(), gpu.streams().acquire().unwrap()];
    let mut y = DeviceBuffer::<u8>::zeroed(&gpu, &a, LEN).unwrap();
    let mut outcomes = Vec::new();
    let work = |capture: &mut Capture<'_>| {
        let to = capture.write(&mut y).device_ptr();
        outcomes = calls(&gpu, [&a, &b], capture);
        // SAFETY: the buffer has this number of bytes.
        unsafe { memset_d8_async(to, 7, LEN, capture.stream().cu_stream()) }
    };
    // SAFETY: the work uses the buffer that it records.
    let graph = unsafe { Graph::capture(&gpu, &b, CaptureMode::default(), work) };
    let graph = graph.expect("the capture is valid");
    graph.launch(&b).unwrap();
    assert_eq!(y.to_host(&a).unwrap(), [7; LEN]);
    drop((graph, y, a, b));
    let failures = take_drop_failures();
    assert!(failures.is_empty(), "{failures:?}");
    gpu.shutdown().unwrap();
    drop(gpu);
    rig.assert_clean();
    outcomes
}

/// Captures no work, and records a read.
fn capture_a_read(
    gpu: &DeviceRuntime,
    on: &StreamLease,
    x: &DeviceBuffer<u8>,
) -> Result<Graph, CaptureError<ResourceError>> {
    let work = |capture: &mut Capture<'_>| {
        capture.read(x);
        Ok(())
    };
    // SAFETY: nothing is captured.
    unsafe { Graph::capture(gpu, on, CaptureMode::default(), work) }
}

fn assert_all(expected: &Outcome, outcomes: &[(&str, Outcome)], backend: Backend) {
    for (call, outcome) in outcomes {
        assert_eq!(outcome, expected, "{call} on {backend:?}");
    }
}

#[test]
fn calls_on_the_capturing_stream_are_refused() {
    for backend in BACKENDS {
        let outcomes = while_capturing(backend, |gpu, [a, b], _| {
            let mut x = DeviceBuffer::<u8>::zeroed(gpu, a, LEN).unwrap();
            let mut y = DeviceBuffer::<u8>::zeroed(gpu, a, LEN).unwrap();
            let mut pinned = PinnedBuffer::<u8>::zeroed(gpu, a, LEN).unwrap();
            let mut recorder = LaunchRecorder::new_strict(b);
            recorder.read(&x);
            let tag = AllocTag::new("in a capture");
            let other = capture_a_read(gpu, a, &x).unwrap();
            vec![
                ("uninit", outcome(DeviceBuffer::<u8>::uninit(gpu, b, LEN))),
                ("zeroed", outcome(DeviceBuffer::<u8>::zeroed(gpu, b, LEN))),
                ("from_host", outcome(DeviceBuffer::from_host(gpu, b, &[1_u8; LEN]))),
                ("capture", outcome(capture_a_read(gpu, b, &x))),
                ("a launch", outcome(recorder.launch(gpu, |_| Ok::<_, ResourceError>(())))),
                ("fill", outcome(x.fill(1, b))),
                ("copy_from", outcome(y.copy_from(&x, b))),
                ("copy_from_host", outcome(y.copy_from_host(&[1; LEN], b))),
                ("to_host", outcome(x.to_host(b))),
                ("copy_to_device", outcome(pinned.copy_to_device(&mut y, b))),
                ("copy_from_device", outcome(pinned.copy_from_device(&x, b))),
                ("synchronize", outcome(gpu.streams().synchronize(b))),
                ("pinned", outcome(PinnedBuffer::<u8>::zeroed(gpu, b, LEN))),
                ("to_host_async", outcome(block_on(x.to_host_async(b)))),
                ("allocate", outcome(gpu.resource().allocate(LEN, b.id(), tag))),
                ("graph.launch", outcome(other.launch(b))),
            ]
        });
        assert_all(&Refused, &outcomes, backend);
    }
}

#[test]
fn calls_on_other_streams_and_on_none_are_made() {
    for backend in BACKENDS {
        let outcomes = while_capturing(backend, |gpu, [a, _], _| {
            let mut x = DeviceBuffer::<u8>::zeroed(gpu, a, LEN).unwrap();
            let mut recorder = LaunchRecorder::new_strict(a);
            recorder.read(&x);
            let filled = outcome(x.fill(1, a));
            vec![
                ("fill", filled),
                ("capture", outcome(capture_a_read(gpu, a, &x))),
                ("a launch", outcome(recorder.launch(gpu, |_| Ok::<_, ResourceError>(())))),
                ("to_host", outcome(x.to_host(a))),
                ("acquire", outcome(gpu.streams().acquire())),
                ("try_reap", outcome(gpu.resource().try_reap())),
                ("reap_pending", outcome(gpu.resource().reap_pending())),
                ("trim_to", outcome(gpu.resource().trim_to(0))),
                ("pinned", outcome(PinnedBuffer::<u8>::zeroed(gpu, a, LEN))),
                ("statistics", outcome(gpu.statistics().map(|it| it.snapshot()).ok_or(()))),
                ("completed", outcome(block_on(gpu.streams().completed(a)))),
                ("spill", outcome(gpu.spill().unwrap().insert(x))),
            ]
        });
        assert_all(&Made, &outcomes, backend);
    }
}

#[test]
fn a_budget_that_refuses_memory_of_a_capture_leaves_it_valid() {
    for backend in BACKENDS {
        while_capturing(backend, |_, _, capture| {
            let refused = capture.allocate(65 << 20).unwrap_err();
            assert!(refused.is_out_of_memory(), "{refused}");
            let memory = capture.allocate(LEN).unwrap();
            capture.free(memory);
            Vec::new()
        });
    }
}

/// The failed free is not lost: it is made again when the stream does not capture any more.
#[test]
fn a_buffer_of_the_capturing_stream_that_is_dropped_can_be_freed_later() {
    for backend in BACKENDS {
        let _alone = alone();
        let rig = Rig::new();
        let gpu = DeviceRuntime::builder(rig.ordinal()).backend(backend).build().unwrap();
        let [a, b] = [gpu.streams().acquire().unwrap(), gpu.streams().acquire().unwrap()];
        let x = DeviceBuffer::<u8>::zeroed(&gpu, &b, LEN).unwrap();
        let mut y = DeviceBuffer::<u8>::zeroed(&gpu, &a, LEN).unwrap();
        let work = |capture: &mut Capture<'_>| {
            drop(x);
            let to = capture.write(&mut y).device_ptr();
            // SAFETY: the buffer has this number of bytes.
            unsafe { memset_d8_async(to, 7, LEN, capture.stream().cu_stream()) }
        };
        // SAFETY: the work uses the buffer that it records.
        let graph = unsafe { Graph::capture(&gpu, &b, CaptureMode::default(), work) }.unwrap();
        graph.launch(&b).unwrap();
        assert_eq!(y.to_host(&a).unwrap(), [7; LEN], "{backend:?}");
        let failures = take_drop_failures();
        assert_eq!(failures.len(), 1, "{backend:?}: {failures:?}");
        for failure in failures {
            failure.retry().unwrap();
        }
        drop((graph, y, a, b));
        gpu.shutdown().unwrap();
        drop(gpu);
        rig.assert_clean();
    }
}
