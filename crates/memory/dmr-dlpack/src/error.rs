//! The error of an import, with the field that is wrong.

use dmr_core::ResourceError;

/// The reason why a tensor was not imported. It is the caller's as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A field of the tensor is wrong, or stands for what this library does not import.
    #[non_exhaustive]
    #[error("the DLPack tensor was not imported: `{field}` {problem}")]
    Field {
        /// The field, as in DLPack's header.
        field: &'static str,
        /// The problem with its value.
        problem: FieldProblem,
    },

    /// The memory was not adopted.
    #[error("the DLPack tensor was not imported: {0}")]
    Resource(#[from] ResourceError),
}

/// The problem with the value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldProblem {
    /// A pointer is null that must not be.
    #[error("is null: the producer must set it")]
    Null,
    /// Another major version, whose other fields are not read.
    #[error("is {0}, and this library reads version 1: export for `max_version` (1, 3)")]
    Version(u32),
    /// A device whose memory cannot be used here.
    #[error("is {0}, which is no CUDA device: copy the tensor to the GPU first")]
    DeviceType(u32),
    /// Another device.
    #[error(
        "is {found}, and the runtime is on device {expected}: import it with a runtime of that device"
    )]
    #[non_exhaustive]
    Device {
        /// The device of the tensor.
        found: i32,
        /// The device of the runtime.
        expected: usize,
    },
    /// A number that is out of range.
    #[error("is {found}, and must be {from} to {to}")]
    #[non_exhaustive]
    Range {
        /// The value.
        found: i64,
        /// The smallest value.
        from: i64,
        /// The largest value.
        to: i64,
    },
    /// Sizes whose product, or sum, exceeds the address space.
    #[error("exceeds the address space: the sizes or strides are wrong")]
    Overflow,
    /// Elements that do not fill whole bytes.
    #[error("has elements of {0} bits, which are no whole bytes: convert the tensor first")]
    SubByte(u32),
    /// A type code that this version does not have.
    #[error("is {0}, which DLPack 1.3 does not define")]
    TypeCode(u8),
}

impl ImportError {
    /// Makes a [`Field`](Self::Field).
    #[must_use]
    pub const fn field(field: &'static str, problem: FieldProblem) -> Self {
        Self::Field { field, problem }
    }
}
