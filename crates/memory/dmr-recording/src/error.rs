//! The error of a recording that cannot be read further: names the byte.

use std::io;

use crate::{MAX_CHUNK, MAX_TEXT_BYTES, MAX_TEXTS, OLDEST_VERSION, VERSION};

/// The error of a recording that cannot be read to its end.
///
/// All records before that byte have been returned. Where a writer was killed, the error is
/// [`Truncated`](Problem::Truncated) or [`Checksum`](Problem::Checksum) in the last chunk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("byte {at}: {problem}")]
pub struct ReadError {
    /// The offset in the file.
    pub at: u64,
    /// The problem there.
    pub problem: Problem,
    /// The error of the file, if it could not be read.
    pub source: Option<io::Error>,
}

/// The problem of a file that cannot be read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file does not begin as a recording does.
    #[error("not a recording: the file does not begin with the mark of the format")]
    NoMagic,
    /// The file is of another version of the format.
    #[error(
        "a recording of version {0} of the format, and this program reads {OLDEST_VERSION} to \
         {VERSION}"
    )]
    Version(u32),
    /// The file ends within a chunk, because its writer was killed or still writes.
    #[error("the file ends within a chunk: what stands before it is whole")]
    Truncated,
    /// The bytes of a chunk's length do not fit each other.
    #[error("no chunk begins here: the bytes of its length do not fit each other")]
    DamagedLength,
    /// The length of a chunk is impossible.
    #[error("a chunk of {0} bytes; each has 1 to {MAX_CHUNK}")]
    ChunkLength(u32),
    /// The bytes of a chunk are not those that were written.
    #[error("the checksum of the chunk does not fit its bytes")]
    Checksum,
    /// A record does not end with its chunk.
    #[error("the chunk ends within a record")]
    Ends,
    /// The first byte of a record is no kind of the format.
    #[error("no kind of record has number {0}")]
    Kind(u8),
    /// A field has a value that is not in the format.
    #[non_exhaustive]
    #[error("no {field} has number {value}")]
    Value {
        /// The field.
        field: &'static str,
        /// The value.
        value: u8,
    },
    /// A number does not fit its field.
    #[error("a number is too large for its field")]
    TooLarge,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    NotText,
    /// A record names a text that stands nowhere before it.
    #[error("a text is used that is not defined before")]
    NoSuchText,
    /// The file has more texts than a recording can have.
    #[error("more than {MAX_TEXTS} texts, or {MAX_TEXT_BYTES} bytes of them")]
    TooManyTexts,
    /// A record stands before the first start.
    #[error("a record stands before the start of a section")]
    NoStart,
    /// Reading failed.
    #[error("the file cannot be read")]
    Io,
}

impl ReadError {
    pub(crate) const fn new(at: u64, problem: Problem) -> Self {
        Self { at, problem, source: None }
    }

    pub(crate) const fn io(at: u64, source: io::Error) -> Self {
        Self { at, problem: Problem::Io, source: Some(source) }
    }
}
