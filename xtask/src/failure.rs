//! Failures of a gate: a command failed, a rule is broken, or the gate could not run.

use std::fmt;

/// The reason why a gate failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A command failed, and has printed its error itself.
    Command {
        /// The command line.
        line: String,
    },
    /// Rules of this repository are broken.
    Violations(Vec<Violation>),
    /// The gate could not run: the reason, and what to do.
    Setup(String),
}

/// One place where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    /// The file, relative to the repository's root, with the line if there is one.
    pub(crate) place: String,
    /// The broken rule, and what to do.
    pub(crate) message: String,
}

impl Violation {
    /// Makes a violation of a whole file or crate.
    pub(crate) fn of(place: &str, message: impl Into<String>) -> Self {
        Self { place: place.to_owned(), message: message.into() }
    }

    /// Makes a violation on one line, counted from zero.
    pub(crate) fn on_line(file: &str, index: usize, message: impl Into<String>) -> Self {
        Self { place: format!("{file}:{}", index + 1), message: message.into() }
    }
}

/// Returns `Ok` without violations; otherwise all of them, sorted.
pub(crate) fn none_of(mut violations: Vec<Violation>) -> Result<(), Failure> {
    if violations.is_empty() {
        return Ok(());
    }
    violations.sort();
    Err(Failure::Violations(violations))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { line } => write!(f, "failed: {line}"),
            Self::Setup(what) => f.write_str(what),
            Self::Violations(violations) => {
                for Violation { place, message } in violations {
                    writeln!(f, "{place}: {message}")?;
                }
                write!(f, "broken rules: {}", violations.len())
            }
        }
    }
}
