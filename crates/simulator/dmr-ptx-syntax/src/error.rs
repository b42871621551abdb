//! The error of a text that is not PTX.

use super::module::Position;

/// A text that is not PTX.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("line {}, column {}: {message}", .at.line, .at.column)]
pub struct ParseError {
    /// Where it is wrong.
    pub at: Position,
    /// The reason, with what was expected.
    pub message: String,
}
