//! Known failures, by name: each with the promise that it breaks and a program that shows it.

use crate::failure::Failure;
use crate::program::Program;

/// A known failure.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// The promises of the contract that it breaks.
    pub breaks: &'static str,
    /// A description.
    pub what: &'static str,
    /// A program that shows it, as text.
    pub program: &'static str,
    /// Returns whether a failure of a program is this one.
    pub is: fn(&Program, &Failure) -> bool,
}

/// All known failures: none.
pub const KNOWN: &[Known] = &[];

/// Returns the known failure that matches this one.
#[must_use]
pub fn classify(program: &Program, failure: &Failure) -> Option<&'static Known> {
    KNOWN.iter().find(|known| (known.is)(program, failure))
}
