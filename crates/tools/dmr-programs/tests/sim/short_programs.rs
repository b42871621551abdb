//! Short programs that are seldom drawn. Each runs without a failure.

use dmr_programs::player::Options;
use dmr_programs::run::Runner;
use dmr_programs::{Conflict, Counts, Program};

/// Plays a program, and returns what it has reached.
fn play(text: &str) -> Counts {
    let program: Program = text.parse().unwrap();
    let mut runner = Runner::new(Options::default());
    runner.play_alone(&program).unwrap_or_else(|failure| panic!("{failure}\n{program}"))
}

/// Two uses each cover the other: one of them must be waited for (U1, U3).
#[test]
fn a_use_is_waited_for_that_was_held_between_its_number_and_its_record() {
    for call in ["cuEventCreate", "cuEventRecord"] {
        play(&format!(
            "stack async, work lazy, streams 4, seed 1
            thread 0: allocate b1 of 4096 on s0
            thread 0: allocate b2 of 4096 on s0
            thread 0: allocate b3 of 4096 on s0
            thread 0: launch on s0 b1 write, held at {call} 1 for 3 lines
            thread 1: launch on s0 b2 write
            thread 1: launch on s1 b2 read b3 write
            thread 1: launch on s0 b3 read
            thread 1: launch on s2 b1 read b3 read"
        ));
    }
}

/// A guarded allocation returns no block of a stream that was retired under it (S2).
#[test]
fn a_stream_that_is_retired_while_the_guard_fills_refuses_the_allocation() {
    for nth in [1, 2] {
        play(&format!(
            "stack guard-async, work lazy, streams 4, seed 1
            thread 0: adopt s3
            thread 1: allocate b0 of 4096 on s3, held at cuMemsetD32Async {nth} for 1 lines
            thread 0: retire s3 at once"
        ));
    }
}

/// A reap of pinned memory makes no call that ends a capture of its home stream, whenever that
/// begins (U14).
#[test]
fn a_reap_of_pinned_memory_ends_no_capture() {
    let calls = ["cuCtxGetCurrent", "cuStreamIsCapturing", "cuEventRecord", "cuEventQuery"];
    for (call, nth) in calls.into_iter().flat_map(|call| [1, 2, 3].map(|nth| (call, nth))) {
        for mode in ["relaxed", "global"] {
            play(&format!(
                "stack async, work lazy, streams 2, seed 1
                thread 0: pin p0 of 4096 on s0
                thread 0: unpin p0
                thread 0: pin p1 of 4096 on s1, held at {call} {nth} for 1 lines
                thread 1: capture s0 {mode}
                thread 1: end capture s0
                thread 0: unpin p1
                thread 0: reap pinned, held at {call} {nth} for 1 lines
                thread 1: capture s1 {mode}
                thread 1: end capture s1"
            ));
        }
    }
}

/// The debug guard fills and checks on library streams, so none of that becomes part of a graph
/// (U14, A3).
#[test]
fn the_guards_work_stays_out_of_a_graph_whenever_the_capture_begins() {
    let calls = ["cuStreamIsCapturing", "cuEventRecord", "cuStreamWaitEvent", "cuMemsetD32Async"];
    for (call, nth) in calls.into_iter().flat_map(|call| [1, 2, 3].map(|nth| (call, nth))) {
        for mode in ["relaxed", "global"] {
            play(&format!(
                "stack guard-async, work lazy, streams 2, seed 1
                thread 0: allocate b0 of 4096 on s0
                thread 0: free b0, held at {call} {nth} for 1 lines
                thread 1: capture s0 {mode}
                thread 1: end capture s0
                thread 0: free b0
                thread 0: allocate b1 of 4096 on s0, held at {call} {nth} for 1 lines
                thread 1: capture s0 {mode}
                thread 1: end capture s0
                thread 0: allocate b2 of 4096 on s0
                thread 0: launch on s0 b2 write
                thread 0: free b2, held at cuLaunchKernel 1 for 2 lines
                thread 1: capture s0 {mode}
                thread 1: end capture s0
                thread 0: free b2"
            ));
        }
    }
}

/// A stream is not retired while a window or a call uses it (U13, S2).
#[test]
fn a_retirement_in_use_is_refused_and_the_stream_works_on() {
    let under_window = play(
        "stack async, work lazy, streams 2, seed 1
        thread 0: adopt s1
        thread 0: allocate b0 of 4096 on s0
        thread 0: open w1 on s1 b0 write
        thread 0: retire s1 at once
        thread 0: retire s1 in time
        thread 0: close w1
        thread 0: launch on s1 b0 update
        thread 0: retire s1",
    );
    assert_eq!(under_window.of(Conflict::RetireRefused), 2, "{under_window}");
    assert_eq!(under_window.of(Conflict::StreamRetired), 1, "{under_window}");
    let under_call = play(
        "stack async, work lazy, streams 4, seed 1
        thread 0: adopt s2
        thread 0: allocate b0 of 4096 on s0
        thread 1: launch on s2 b0 update, held at cuStreamIsCapturing 1 for 1 lines
        thread 0: retire s2 at once",
    );
    assert_eq!(under_call.of(Conflict::RetireRefused), 1, "{under_call}");
}

/// A retirement waits for a call that uses the stream.
#[test]
fn a_retirement_with_a_timeout_waits_for_a_call() {
    let counts = play(
        "stack async, work lazy, streams 4, seed 1
        thread 0: adopt s2
        thread 0: allocate b0 of 4096 on s0
        thread 1: launch on s2 b0 update, held at cuEventRecord 1 for 1 lines
        thread 0: retire s2 in time
        thread 0: launch on s1 b0 update",
    );
    assert_eq!(counts.of(Conflict::StreamRetired), 1, "{counts}");
    assert_eq!(counts.of(Conflict::WaitedForHeldThread), 1, "{counts}");
}

/// A copy to pinned memory is not lost when its stream is retired: the host waits for it.
#[test]
fn the_host_reads_pinned_memory_after_a_copy_that_was_held() {
    let counts = play(
        "stack async, work lazy, streams 2, seed 1
        thread 0: adopt s1
        thread 0: pin p0 of 4096 on s0
        thread 0: fill device p0 on s0
        thread 0: copy to p0 on s1, held at cuMemcpyDtoHAsync_v2 1 for 1 lines
        thread 1: retire s1 at once
        thread 0: host reads p0",
    );
    assert_eq!(counts.of(Conflict::RetireUnderCall), 1, "{counts}");
    assert_eq!(counts.of(Conflict::PinnedRead), 1, "{counts}");
}

/// An event that was recorded into a graph orders nothing, and is not waited for (U14).
#[test]
fn a_capture_that_begins_under_a_call_refuses_the_call() {
    for call in ["cuEventRecord 2", "cuStreamWaitEvent 1"] {
        let counts = play(&format!(
            "stack async, work lazy, streams 2, seed 1
            thread 0: allocate b0 of 4096 on s0
            thread 0: launch on s1 b0 write, held at {call} for 1 lines
            thread 1: capture s1 relaxed
            thread 1: launch on s0 b0 write
            thread 1: end capture s1
            thread 1: launch on s1 b0 read"
        ));
        assert_eq!(counts.of(Conflict::CaptureUnderCall), 1, "{call}\n{counts}");
        assert!(counts.of(Conflict::CaptureRefused) > 0, "{call}\n{counts}");
    }
}
