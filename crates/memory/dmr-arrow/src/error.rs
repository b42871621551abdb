//! The errors of columns.

use std::fmt;

use dmr_buffer::BufferError;
use dmr_core::ResourceError;
use dmr_launch::LaunchError;

use crate::{ArrowDeviceArray, ArrowSchema};

/// The reason why a column was not imported, made or exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ColumnError {
    /// A field of a struct, or of the parts of a column, has a value that it must not have.
    #[error("{field} {problem}")]
    #[non_exhaustive]
    Invalid {
        /// The field, with the path to it: `ArrowArray.children[1].buffers[0]`.
        field: String,
        /// The value, and what it must be.
        problem: String,
    },

    /// A view was requested of another type than the column has.
    #[error(
        "a column of the type {format:?} has no view of {requested}: use the type of its elements, \
         or its bytes"
    )]
    #[non_exhaustive]
    OtherType {
        /// The format string of the column.
        format: String,
        /// The requested type.
        requested: &'static str,
    },

    /// An error of the streams, the resource or the driver.
    #[error(transparent)]
    Resource(#[from] ResourceError),

    /// An error of a buffer.
    #[error(transparent)]
    Buffer(#[from] BufferError),

    /// The uses of the buffers could not be ordered.
    #[error(transparent)]
    Launch(Box<LaunchError<ResourceError>>),
}

impl From<LaunchError<ResourceError>> for ColumnError {
    fn from(error: LaunchError<ResourceError>) -> Self {
        Self::Launch(Box::new(error))
    }
}

impl ColumnError {
    pub(crate) fn invalid(field: impl fmt::Display, problem: impl fmt::Display) -> Self {
        Self::Invalid { field: field.to_string(), problem: problem.to_string() }
    }
}

/// A column that was not imported, with its structs as they were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("a column of Arrow was not imported: {error}")]
pub struct ColumnImportError {
    /// The reason.
    #[source]
    pub error: ColumnError,
    /// The array. Dropping it releases it.
    pub array: ArrowDeviceArray,
    /// The schema. Dropping it releases it.
    pub schema: ArrowSchema,
}

/// The place of a column in its tree, for messages.
#[derive(Clone, Copy)]
pub(crate) enum Path<'a> {
    Root,
    Child { of: &'a Path<'a>, index: usize },
    Dictionary { of: &'a Path<'a> },
}

impl Path<'_> {
    pub(crate) fn depth(&self) -> usize {
        match self {
            Self::Root => 0,
            Self::Child { of, .. } | Self::Dictionary { of } => 1 + of.depth(),
        }
    }

    /// Makes the error about a field of this column in a struct of this name.
    pub(crate) fn invalid(
        &self,
        of: &str,
        field: impl fmt::Display,
        problem: impl fmt::Display,
    ) -> ColumnError {
        ColumnError::invalid(format_args!("{of}{self}.{field}"), problem)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Child { of, index } => write!(f, "{of}.children[{index}]"),
            Self::Dictionary { of } => write!(f, "{of}.dictionary"),
        }
    }
}
