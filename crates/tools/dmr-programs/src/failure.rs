//! The failures of a program that was played.

use std::fmt;

use dmr_sim::ReportKind;

/// A failure of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its kind.
    pub kind: FailureKind,
    /// The line at which it was detected, counted from 0; `None` at the end.
    pub line: Option<usize>,
    /// A description.
    pub text: String,
}

/// The kind of a failure. To the shrinker two failures of one kind are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The simulator has reported a finding of this kind.
    Reported(ReportKind),
    /// A check found a byte that differs from the written one.
    WrongByte,
    /// The host has read a word of pinned memory that differs from the written one.
    WrongWord,
    /// `usage` differs from the blocks of the program.
    Accounting,
    /// Memory is left after all blocks were freed and the stack was trimmed.
    MemoryLeft,
    /// A call has failed that must succeed here.
    UnexpectedError,
    /// A conflicting use was not refused.
    NotRefused,
    /// A stream was made to wait although no use of another stream has to come first.
    NeedlessWait,
    /// A block was in another state than it must be after a free.
    WrongState,
    /// A capture was invalidated by a call of the library.
    CaptureEnded,
    /// A call of the library has made a stream join a capture of another.
    CaptureJoined,
    /// A call of the library has left its thread in another capture mode.
    CaptureMode,
    /// A stream was retired although a window or a call used it.
    RetiredInUse,
    /// A block grew over memory of another block.
    GrewOverNeighbour,
    /// A call panicked.
    Panic,
    /// A call did not return.
    Hang,
    /// A forked child made a call that was not refused, or did not end.
    Child,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, line: usize, text: impl fmt::Display) -> Self {
        Self { kind, line: Some(line), text: text.to_string() }
    }

    pub(crate) fn at_end(kind: FailureKind, text: impl fmt::Display) -> Self {
        Self { kind, line: None, text: text.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{:?} at line {}: {}", self.kind, line + 1, self.text),
            None => write!(f, "{:?} at the end: {}", self.kind, self.text),
        }
    }
}
