//! Exit codes, and the failure of a command.

use std::fmt;
use std::process::ExitCode;

/// The exit code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: nothing is wrong.
    Fine = 0,
    /// 1: a check failed.
    Failed = 1,
    /// 2: the command cannot be carried out: usage, unreadable input, no device.
    Unusable = 2,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A failure that ends a command before its output.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// The reason, and what to do.
    pub message: String,
}

impl Failure {
    /// Makes a failure with exit code 2: the command cannot be carried out.
    pub fn unusable(reason: impl fmt::Display) -> Self {
        Self { exit: Exit::Unusable, message: reason.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
