//! Failures that are known, by name: each with the promise it breaks and the program that shows it.

use crate::failure::Failure;
use crate::program::Program;

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

/// The failures that are known today: none.
pub const KNOWN: &[Known] = &[];

/// Returns the known failure that this one is.
#[must_use]
pub fn classify(program: &Program, failure: &Failure) -> Option<&'static Known> {
    KNOWN.iter().find(|known| (known.is)(program, failure))
}
