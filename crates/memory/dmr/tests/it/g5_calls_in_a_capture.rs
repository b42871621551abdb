//! G5: what each call does while a stream captures through the library. The capture stays valid.

#![cfg(all(
    feature = "async",
    feature = "budget",
    feature = "debug-guard",
    feature = "direct",
    feature = "pool",
    feature = "spill",
    feature = "statistics"
))]
#![allow(unsafe_code, reason = "captures")]

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use dmr::cudarc::driver::result::memset_d8_async;
use dmr::dmr_graphs::CaptureError;
use dmr::prelude::*;
use dmr_testkit::{Rig, block_on};

use Outcome::{Made, Refused};

const LEN: usize = 1 << 12;
const TAG: AllocTag = AllocTag::new("in a capture");

/// On a GPU the tests share a context, and a test that synchronises it ends the captures of others.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The options of one run of a test.
#[derive(Clone, Copy, Debug)]
struct Setup {
    backend: Backend,
    mode: CaptureMode,
    /// With a debug guard around each block.
    is_guarded: bool,
    /// The stream that captures is of another owner.
    is_adopted: bool,
}

/// Runs a test with each setup, one at a time.
fn for_each_setup(test: impl Fn(Setup)) {
    let _alone = alone();
    for backend in [Backend::Pool, Backend::Async, Backend::DirectTracked] {
        for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
            for (is_guarded, is_adopted) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                test(Setup { backend, mode, is_guarded, is_adopted });
            }
        }
    }
}

fn runtime(rig: &Rig, setup: Setup) -> DeviceRuntime {
    let builder = DeviceRuntime::builder(rig.ordinal())
        .backend(setup.backend)
        .budget_on(&Budget::new(64 << 20))
        .statistics()
        .spill();
    let builder = if setup.is_guarded { builder.debug_guard() } else { builder };
    builder.build().unwrap()
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

/// The values that the calls of a test use while `b` captures.
struct Calls<'t, 'c> {
    gpu: &'t DeviceRuntime,
    a: &'t StreamLease,
    b: &'t StreamLease,
    capture: &'t mut Capture<'c>,
    /// A buffer with home stream `b`, which no other stream has used.
    of_b: DeviceBuffer<u8>,
    /// A graph that was captured before, of a read.
    graph: &'t mut Graph,
}

/// Captures a write of a buffer on `b`, with `calls` in the middle. Then the graph runs.
///
/// `calls` drops the buffer of `b`. The failed free is not lost: it is made again when the stream
/// does not capture any more.
fn while_capturing<T>(rig: &Rig, setup: Setup, calls: impl FnOnce(Calls<'_, '_>) -> T) -> T {
    let gpu = runtime(rig, setup);
    let a = gpu.streams().acquire().unwrap();
    let b = match setup.is_adopted {
        true => gpu.streams().adopt(rig.device().context().new_stream().unwrap()).unwrap(),
        false => gpu.streams().acquire().unwrap(),
    };
    let mut y = DeviceBuffer::<u8>::zeroed(&gpu, &a, LEN).unwrap();
    let of_b = DeviceBuffer::<u8>::uninit(&gpu, &b, LEN).unwrap();
    let mut graph = capture_a_read(&gpu, &b, &y).unwrap();
    let mut outcome = None;
    let work = |capture: &mut Capture<'_>| {
        let to = capture.write(&mut y).device_ptr();
        let graph = &mut graph;
        outcome = Some(calls(Calls { gpu: &gpu, a: &a, b: &b, capture, of_b, graph }));
        // SAFETY: the buffer has this number of bytes.
        unsafe { memset_d8_async(to, 7, LEN, capture.stream().cu_stream()) }
    };
    // SAFETY: the work uses the buffer that it records.
    let captured = unsafe { Graph::capture(&gpu, &b, setup.mode, work) };
    let captured = captured.unwrap_or_else(|error| panic!("{setup:?}: {error}"));
    captured.launch(&b).unwrap();
    assert_eq!(y.to_host(&a).unwrap(), [7; LEN], "{setup:?}");
    drop((captured, graph, y, a, b));
    let failures = take_drop_failures();
    assert_eq!(failures.len(), 1, "of the buffer of b, with {setup:?}: {failures:?}");
    for failure in failures {
        failure.retry().unwrap();
    }
    gpu.shutdown().unwrap();
    outcome.unwrap()
}

/// Captures no work, and records a read.
fn capture_a_read(
    gpu: &DeviceRuntime,
    on: &StreamLease,
    x: &DeviceBuffer<u8>,
) -> Result<Graph, CaptureError<ResourceError>> {
    // SAFETY: nothing is captured.
    unsafe { Graph::capture(gpu, on, CaptureMode::default(), |capture| read(capture, x)) }
}

fn read(capture: &mut Capture<'_>, x: &DeviceBuffer<u8>) -> Result<(), ResourceError> {
    capture.read(x);
    Ok(())
}

fn assert_all(expected: &Outcome, outcomes: &[(&str, Outcome)], setup: Setup) {
    for (call, outcome) in outcomes {
        assert_eq!(outcome, expected, "{call} with {setup:?}");
    }
}

#[test]
fn calls_on_the_capturing_stream_are_refused() {
    for_each_setup(|setup| {
        let rig = Rig::new();
        let outcomes = while_capturing(&rig, setup, |it| {
            let Calls { gpu, a, b, mut of_b, graph, .. } = it;
            let mut x = DeviceBuffer::<u8>::zeroed(gpu, a, LEN).unwrap();
            let mut y = DeviceBuffer::<u8>::zeroed(gpu, a, LEN).unwrap();
            let mut pinned = PinnedBuffer::<u8>::zeroed(gpu, a, LEN).unwrap();
            let launch = |seconds| {
                let mut it = LaunchRecorder::new_strict(b);
                it.read(&x);
                let it = it.with_timeout(Duration::from_secs(seconds));
                outcome(it.launch(gpu, |_| Ok::<_, ResourceError>(())))
            };
            let [launch, with_timeout] = [0, 1].map(launch);
            let views = LaunchRecorder::new_strict(b)
                .launch_with(gpu, Reads(&x), |_, _| Ok::<_, ResourceError>(()));
            let mut replay = graph.replay(b);
            replay.read(&x);
            let replay = outcome(replay.launch());
            // SAFETY: nothing is captured.
            let update = unsafe { graph.update(b, setup.mode, |capture| read(capture, &x)) };
            let fork = |capture: &mut Capture<'_>| capture.fork(b).map(drop);
            // SAFETY: nothing is captured.
            let fork = unsafe { Graph::capture(gpu, a, setup.mode, fork) };
            let mut outcomes = vec![
                ("uninit", outcome(DeviceBuffer::<u8>::uninit(gpu, b, LEN))),
                ("zeroed", outcome(DeviceBuffer::<u8>::zeroed(gpu, b, LEN))),
                ("from_host", outcome(DeviceBuffer::from_host(gpu, b, &[1_u8; LEN]))),
                ("capture", outcome(capture_a_read(gpu, b, &x))),
                ("update", outcome(update)),
                ("fork", outcome(fork)),
                ("launch", launch),
                ("with_timeout", with_timeout),
                ("launch_with", outcome(views)),
                ("graph.launch", outcome(graph.launch(b))),
                ("graph.replay", replay),
                ("fill", outcome(x.fill(1, b))),
                ("copy_from", outcome(y.copy_from(&x, b))),
                ("copy_from_host", outcome(y.copy_from_host(&[1; LEN], b))),
                ("to_host", outcome(x.to_host(b))),
                ("copy_to_device", outcome(pinned.copy_to_device(&mut y, b))),
                ("copy_from_device", outcome(pinned.copy_from_device(&x, b))),
                ("extend_from_host", outcome(y.extend_from_host(&[1; 1 << 22], b))),
                ("reserve on b", outcome(x.reserve(1 << 22, b))),
                ("reserve of memory of b", outcome(of_b.reserve(1 << 22, a))),
                ("synchronize", outcome(gpu.streams().synchronize(b))),
                ("pinned", outcome(PinnedBuffer::<u8>::zeroed(gpu, b, LEN))),
                ("to_host_async", outcome(block_on(x.to_host_async(b)))),
                ("allocate", outcome(gpu.resource().allocate(LEN, b.id(), TAG))),
            ];
            match gpu.debug_guard() {
                Some(guard) => outcomes.push(("check_all", outcome(guard.check_all()))),
                // Other backends never grow a block, and a guard neither: they return `false`.
                None if setup.backend == Backend::Pool => {
                    outcomes.push(("try_grow", outcome(of_b.try_grow(2 * LEN))));
                }
                None => assert_eq!(of_b.try_grow(2 * LEN), Ok(false)),
            }
            outcomes
        });
        assert_all(&Refused, &outcomes, setup);
        rig.assert_clean();
    });
}

#[test]
fn calls_on_other_streams_and_on_none_are_made() {
    for_each_setup(|setup| {
        let rig = Rig::new();
        let outcomes = while_capturing(&rig, setup, |it| {
            let Calls { gpu, a, graph, mut of_b, .. } = it;
            let mut recorder = LaunchRecorder::new_strict(a);
            recorder.read(&of_b);
            let launch_of_b = outcome(recorder.launch(gpu, |_| Ok::<_, ResourceError>(())));
            let fill_of_b = outcome(of_b.fill(1, a));
            let to_host_of_b = outcome(of_b.to_host(a));
            let mut x = DeviceBuffer::<u8>::zeroed(gpu, a, LEN).unwrap();
            let mut recorder = LaunchRecorder::new_strict(a);
            recorder.read(&x);
            let filled = outcome(x.fill(1, a));
            let allocates = |capture: &mut Capture<'_>| capture.allocate(LEN).map(drop);
            // SAFETY: nothing is captured. The graph is dropped with its memory.
            let allocates = unsafe { Graph::capture(gpu, a, setup.mode, allocates) };
            let launched = outcome(allocates.as_ref().unwrap().launch(a));
            drop(of_b);
            vec![
                ("launch of memory of b", launch_of_b),
                ("fill of memory of b", fill_of_b),
                ("to_host of memory of b", to_host_of_b),
                ("fill", filled),
                ("capture", outcome(capture_a_read(gpu, a, &x))),
                ("capture with memory", outcome(allocates)),
                ("graph.launch", launched),
                ("graph.launch of one of b", outcome(graph.launch(a))),
                ("a launch", outcome(recorder.launch(gpu, |_| Ok::<_, ResourceError>(())))),
                ("to_host", outcome(x.to_host(a))),
                ("acquire", outcome(gpu.streams().acquire())),
                ("try_reap", outcome(gpu.resource().try_reap())),
                ("reap_pending", outcome(gpu.resource().reap_pending())),
                ("trim_to", outcome(gpu.resource().trim_to(0))),
                ("pinned", outcome(PinnedBuffer::<u8>::zeroed(gpu, a, LEN))),
                ("statistics", outcome(gpu.statistics().map(|it| it.snapshot()).ok_or(()))),
                ("synchronize_all", outcome(gpu.streams().synchronize_all())),
                ("completed", outcome(block_on(gpu.streams().completed(a)))),
                ("spill", outcome(gpu.spill().unwrap().insert(x))),
            ]
        });
        assert_all(&Made, &outcomes, setup);
        rig.assert_clean();
    });
}

/// A copy or a launch names a stream of each device. It is refused if either captures.
#[test]
fn peers_copies_and_launches_that_name_the_capturing_stream_are_refused() {
    for_each_setup(|setup| {
        let rigs = Rig::pair();
        let there = runtime(&rigs[1], setup);
        let theirs = there.streams().acquire().unwrap();
        let mut z = DeviceBuffer::<u8>::zeroed(&there, &theirs, LEN).unwrap();
        let [refused, made] = while_capturing(&rigs[0], setup, |it| {
            let Calls { gpu, a, b, .. } = it;
            let mut x = DeviceBuffer::<u8>::zeroed(gpu, a, LEN).unwrap();
            let launch = |on: &StreamLease, by: &DeviceRuntime, of: &StreamLease| {
                let mut recorder = LaunchRecorder::new_strict(on);
                match by.ordinal() == gpu.ordinal() {
                    true => recorder.read_peer(&z, &there, of),
                    false => recorder.read_peer(&x, gpu, of),
                };
                outcome(recorder.launch(by, |_| Ok::<_, ResourceError>(())))
            };
            let refused = [launch(b, gpu, &theirs), launch(&theirs, &there, b)];
            let made = [launch(a, gpu, &theirs), launch(&theirs, &there, a)];
            let [from_b, by_b] = refused;
            let [from_a, by_a] = made;
            [
                vec![
                    ("launch on b", from_b),
                    ("launch with memory of b", by_b),
                    ("copy on b", outcome(x.copy_from_peer(&z, &theirs, b))),
                    ("copy from b", outcome(z.copy_from_peer(&x, b, &theirs))),
                ],
                vec![
                    ("launch on a", from_a),
                    ("launch with memory of a", by_a),
                    ("copy on a", outcome(x.copy_from_peer(&z, &theirs, a))),
                    ("copy from a", outcome(z.copy_from_peer(&x, a, &theirs))),
                ],
            ]
        });
        assert_all(&Refused, &refused, setup);
        assert_all(&Made, &made, setup);
        drop((z, theirs));
        there.shutdown().unwrap();
        drop(there);
        Rig::assert_all_clean(rigs);
    });
}

#[test]
fn a_budget_that_refuses_memory_of_a_capture_leaves_it_valid() {
    for_each_setup(|setup| {
        let rig = Rig::new();
        while_capturing(&rig, setup, |it| {
            let refused = it.capture.allocate(65 << 20).unwrap_err();
            assert!(refused.is_out_of_memory(), "{refused}");
            let memory = it.capture.allocate(LEN).unwrap();
            it.capture.free(memory);
        });
        rig.assert_clean();
    });
}

#[test]
fn a_buffer_of_the_capturing_stream_that_is_dropped_can_be_freed_later() {
    for_each_setup(|setup| {
        let rig = Rig::new();
        while_capturing(&rig, setup, |it| drop(it.of_b));
        rig.assert_clean();
    });
}

#[test]
fn the_capturing_stream_is_not_retired() {
    for_each_setup(|setup| {
        let rig = Rig::new();
        while_capturing(&rig, setup, |it| {
            let retired = it.gpu.streams().retire_stream(it.b);
            assert!(matches!(retired, Err(ResourceError::StreamMisuse { .. })), "{retired:?}");
        });
        rig.assert_clean();
    });
}
