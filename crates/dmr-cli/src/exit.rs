//! What a command answers to the shell.

use std::fmt;
use std::process::ExitCode;

/// How a command ends.
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

/// Why a command ended without an answer.
#[derive(Debug)]
pub struct Failure {
    /// How it ends.
    pub exit: Exit,
    /// Why, and what to do.
    pub message: String,
}

impl Failure {
    /// The command cannot be carried out.
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
