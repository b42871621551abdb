//! Failures that are known, by name: each with the promise it breaks and the program that shows it.

use crate::failure::{Failure, FailureKind};
use crate::program::{Program, Step};

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
pub const KNOWN: &[Known] = &[Known {
    name: "a reap of pinned memory ends a capture",
    breaks: "U14",
    what: "a stream begins to capture after a reap has looked whether it does: the query of the stream, \
               which was the home of pinned memory that was dropped, ends the capture",
    program: "stack async, work lazy, streams 2, seed 1
            thread 0: pin p0 of 4096 on s0
            thread 0: unpin p0
            thread 0: pin p1 of 4096 on s1, held at cuCtxGetCurrent 1 for 1 lines
            thread 1: capture s0 relaxed",
    is: |program, failure| {
        failure.kind == FailureKind::CaptureEnded
            && program.lines.iter().any(|line| {
                matches!(line.step, Step::Pin { .. } | Step::ReapPinned) && line.hold.is_some()
            })
            && captures_under_a_call(program)
    },
}];

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
