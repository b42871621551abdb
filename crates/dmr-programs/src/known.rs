//! Failures that are known, by name: each with the promise it breaks and the program that shows it.

use crate::failure::{Failure, FailureKind};
use crate::program::{CaptureMode, Program, Step};

/// A failure that is known.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// The promises of the contract that it breaks.
    pub breaks: &'static str,
    /// What happens.
    pub what: &'static str,
    /// A program that shows it, as text.
    pub program: &'static str,
    /// Whether a failure of a program is this one.
    pub is: fn(&Program, &Failure) -> bool,
}

/// The failures that are known today.
pub const KNOWN: &[Known] = &[
    Known {
        name: "a launch leaves out all its waits",
        breaks: "U1, U3",
        what: "two events each cover the other, and both are left out: a thread was held between the \
               number of its use and the record, while its stream went on",
        program: "stack async, work lazy, streams 4, seed 1
            thread 0: allocate b1 of 4096 on s0
            thread 0: allocate b2 of 4096 on s0
            thread 0: allocate b3 of 4096 on s0
            thread 0: launch on s0 b1 write, held at cuEventCreate 1 for 3 lines
            thread 1: launch on s0 b2 write
            thread 1: launch on s1 b2 read b3 write
            thread 1: launch on s0 b3 read
            thread 1: launch on s2 b1 read b3 read",
        is: |program, failure| {
            matches!(failure.kind, FailureKind::Reported(kind) if kind.is_race())
                && lets_a_stream_pass_a_held_use(program)
        },
    },
    Known {
        name: "a block freed while its window is taken back stays retired",
        breaks: "T7, U7",
        what: "`prepare_uses` fails and closes the window of a block that another thread has freed \
               meanwhile: no reap frees it afterwards",
        program: "stack pool-pages, work random, streams 3, seed 609449
            thread 0: allocate b0 of 300000 on s2
            thread 0: launch on s0 b0 read
            thread 0: at home b0 write, held at cuStreamWaitEvent 1 for 1 lines, cuStreamWaitEvent 1 fails with 2
            thread 2: free b0",
        is: |program, failure| {
            matches!(failure.kind, FailureKind::Accounting | FailureKind::MemoryLeft)
                && frees_under_a_failing_prepare(program)
        },
    },
    Known {
        name: "a stream is retired under an open window",
        breaks: "U13, S2",
        what: "`retire_stream` returns `Ok` while a window is open on the stream",
        program: "stack async, work lazy, streams 2, seed 1
            thread 0: adopt s1
            thread 0: allocate b0 of 4096 on s0
            thread 0: open w1 on s1 b0 write
            thread 0: retire s1 at once",
        is: |program, failure| {
            failure.kind == FailureKind::RetiredInUse
                && failure.line.is_some_and(|line| retires_in_use(&program.lines[line].step))
        },
    },
    Known {
        name: "a stream is retired under a call",
        breaks: "U13, S2",
        what: "`prepare_uses` opens a window on a stream that was retired while it was held",
        program: "stack async, work lazy, streams 4, seed 1
            thread 0: adopt s2
            thread 0: allocate b0 of 4096 on s0
            thread 1: launch on s2 b0 update, held at cuStreamIsCapturing 1 for 1 lines
            thread 0: retire s2 at once",
        is: |program, failure| {
            let is_kind = match failure.kind {
                FailureKind::RetiredInUse | FailureKind::WrongWord => true,
                FailureKind::Reported(kind) => kind.is_race(),
                _ => false,
            };
            is_kind && program.lines.iter().enumerate().any(|(at, _)| retires_under_call(program, at))
        },
    },
    Known {
        name: "a call ends the capture of another stream",
        breaks: "U14",
        what: "the library makes a driver call that a capture in global or thread-local mode forbids",
        program: "stack pool-async, work lazy, streams 2, seed 1
            thread 0: allocate b0 of 4096 on s0
            thread 0: free b0
            thread 0: capture global
            thread 0: wait and reap
            thread 0: trim to 0",
        is: |program, failure| {
            failure.kind == FailureKind::CaptureEnded
                && program.lines.iter().any(|line| {
                    matches!(line.step, Step::Capture { mode } | Step::CaptureStream { mode, .. }
                        if mode != CaptureMode::Relaxed)
                })
        },
    },
    Known {
        name: "a capture begins under a call",
        breaks: "U14",
        what: "a stream begins to capture after a call has looked whether it does: the event that the call \
               records belongs to the graph, and a stream that waits for it joins the capture",
        program: "stack async, work lazy, streams 2, seed 1
            thread 0: allocate b0 of 4096 on s0
            thread 0: launch on s1 b0 write, held at cuEventRecord 2 for 1 lines
            thread 1: capture s1 relaxed
            thread 1: launch on s0 b0 write",
        is: |program, failure| {
            matches!(
                failure.kind,
                FailureKind::CaptureJoined
                    | FailureKind::CaptureEnded
                    | FailureKind::NotRefused
                    | FailureKind::UnexpectedError
                    | FailureKind::Reported(_)
            ) && captures_under_a_call(program)
        },
    },
];

/// Whether this line is held while another thread retires a stream.
fn retires_under_call(program: &Program, at: usize) -> bool {
    let line = &program.lines[at];
    let Some(hold) = line.hold else { return false };
    let mut meanwhile = program.lines.iter().skip(at + 1).take(hold.lines);
    meanwhile.any(|other| retires_in_use(&other.step) && other.thread != line.thread)
}

fn retires_in_use(step: &Step) -> bool {
    matches!(step, Step::RetireAtOnce { .. } | Step::RetireWithin { .. })
}

/// Whether a stream begins to capture while another thread is held in a call.
fn captures_under_a_call(program: &Program) -> bool {
    program.lines.iter().enumerate().any(|(at, line)| {
        let Some(hold) = line.hold else { return false };
        let mut meanwhile = program.lines.iter().skip(at + 1).take(hold.lines);
        meanwhile.any(|other| {
            matches!(other.step, Step::CaptureStream { .. }) && other.thread != line.thread
        })
    })
}

/// Returns the known failure that this one is.
#[must_use]
pub fn classify(program: &Program, failure: &Failure) -> Option<&'static Known> {
    KNOWN.iter().find(|known| (known.is)(program, failure))
}

/// Whether a thread is held in the preparation of uses that is going to fail, while another thread
/// frees one of the blocks.
fn frees_under_a_failing_prepare(program: &Program) -> bool {
    program.lines.iter().enumerate().any(|(at, line)| {
        let (Some(hold), Some(_)) = (line.hold, line.fail) else { return false };
        let Some((_, used)) = use_of(program, &line.step) else { return false };
        let mut meanwhile = program.lines.iter().skip(at + 1).take(hold.lines);
        meanwhile.any(|other| {
            matches!(other.step, Step::Free { block } if used.contains(&block))
                && other.thread != line.thread
        })
    })
}

/// Whether a use is held while its stream uses a block that another stream uses next, which then
/// hands a second block back to the first stream.
fn lets_a_stream_pass_a_held_use(program: &Program) -> bool {
    program.lines.iter().enumerate().any(|(at, line)| {
        let Some(hold) = line.hold else { return false };
        let Some((stream, _)) = use_of(program, &line.step) else { return false };
        let meanwhile = program.lines.iter().skip(at + 1).take(hold.lines);
        let others = meanwhile.filter(|other| other.thread != line.thread);
        let uses: Vec<_> = others.filter_map(|other| use_of(program, &other.step)).collect();
        let shared = |a: &[u32], b: &[u32]| a.iter().any(|block| b.contains(block));
        let is_between = |(nth, (theirs, blocks)): (usize, &(usize, Vec<u32>))| {
            let on_stream =
                |(it, others): &(usize, Vec<u32>)| *it == stream && shared(others, blocks);
            *theirs != stream
                && blocks.len() > 1
                && uses[..nth].iter().any(on_stream)
                && uses[nth + 1..].iter().any(on_stream)
        };
        uses.iter().enumerate().any(is_between)
    })
}

/// The stream of a step that uses blocks, and the blocks.
fn use_of(program: &Program, step: &Step) -> Option<(usize, Vec<u32>)> {
    match step {
        Step::Launch { stream, uses }
        | Step::Open { stream, uses, .. }
        | Step::OpenIdle { stream, uses, .. } => {
            Some((*stream, uses.iter().map(|(block, _)| *block).collect()))
        }
        Step::Copy { from, to, stream } => Some((*stream, vec![*from, *to])),
        Step::Home { block, .. } | Step::Record { block } => {
            program.lines.iter().find_map(|line| match line.step {
                Step::Allocate { block: allocated, stream, .. } if allocated == *block => {
                    Some((stream, vec![allocated]))
                }
                _ => None,
            })
        }
        _ => None,
    }
}
