//! Failures that are known, by name: each with the promise it breaks and the program that shows it.

use crate::failure::{Failure, FailureKind};
use crate::program::{Program, Step};
use crate::stack::Stack;

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
        name: "the guard's work goes into a graph",
        breaks: "U14, A3",
        what: "a stream begins to capture after the debug guard has looked whether it does: what the guard \
               fills or checks belongs to the graph, and the guard reports corruption where there is none",
        program: "stack guard-async, work lazy, streams 2, seed 1
            thread 0: allocate b0 of 4096 on s0
            thread 0: free b0, held at cuMemsetD32Async 1 for 1 lines
            thread 1: capture s0 relaxed",
        is: |program, failure| {
            matches!(failure.kind, FailureKind::UnexpectedError | FailureKind::Reported(_))
                && program.stack == Stack::GuardAsync
                && captures_under_a_call(program)
        },
    },
    Known {
        name: "an allocation goes on after it has ended a capture",
        breaks: "U14",
        what: "a stream begins to capture after an allocation has looked whether it does: the wait that the \
               driver refuses ends the capture, and the allocation takes other memory and returns `Ok`",
        program: "stack pool-pages, work eager, streams 4, seed 81233
            thread 0: allocate b2 of 439108 on s0
            thread 0: free b2
            thread 0: allocate b4 of 415212 on s1, held at cuStreamWaitEvent 1 for 2 lines
            thread 2: capture s1 relaxed
            thread 2: trim to 0",
        is: |program, failure| {
            failure.kind == FailureKind::CaptureEnded
                && program.lines.iter().any(|line| {
                    matches!(line.step, Step::Allocate { .. } | Step::Pin { .. })
                        && line.hold.is_some()
                })
                && captures_under_a_call(program)
        },
    },
    Known {
        name: "a full budget hides that a block is a part",
        breaks: "T4",
        what: "`try_grow` of a part is `Ok(false)` where the budget has no room, not `PartOfBlock`",
        program: "stack budget-pool, work lazy, streams 4, seed 42620
            thread 0: allocate b1 of 645600 on s2
            thread 0: narrow b1 to 53504 .. 256436
            thread 0: allocate b2 of 20000 on s0
            thread 0: grow b1 to 594048",
        is: |program, failure| {
            failure.kind == FailureKind::GrewOverNeighbour && program.stack == Stack::BudgetPool
        },
    },
];

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
