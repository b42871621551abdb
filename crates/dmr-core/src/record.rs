//! One row of an allocation log or trace: the columns that both share.

/// The columns of the CSV format, in the order in which they are written. Readers find them by
/// header; a trace may have fewer.
pub const COLUMNS: [&str; 13] = [
    "order", "time_ns", "thread", "action", "ptr", "bytes", "stream", "device", "tag", "query_id",
    "generation", "result", "message",
];

/// How many bytes of an error message a row keeps.
pub const MAX_MESSAGE_LEN: usize = 256;

/// What was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordAction {
    /// `allocate`.
    Allocate,
    /// `deallocate`.
    Deallocate,
    /// `try_reap` or `reap_pending`.
    Reap,
}

impl RecordAction {
    /// How the format writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::Deallocate => "free",
            Self::Reap => "reap",
        }
    }
}

/// One call on a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationRecord {
    /// Counts the records of a log, from 0.
    pub order: u64,
    /// Wall-clock nanoseconds (of a log: since the epoch; of a trace: since its start).
    pub time_ns: u64,
    /// The calling thread.
    pub thread: u64,
    /// What was called.
    pub action: RecordAction,
    /// The block's address, or any id that pairs an allocation with its free.
    pub ptr: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// The stream.
    pub stream: u64,
    /// CUDA device ordinal.
    pub device: u32,
    /// Who asked.
    pub tag: crate::AllocTag,
    /// The query on whose behalf; 0 for none.
    pub query_id: u64,
    /// The block's generation; 0 where it is not known.
    pub generation: u64,
    /// Why the call failed; `None` if it did not. At most [`MAX_MESSAGE_LEN`] bytes.
    pub failure: Option<Failure>,
}

/// Why a recorded call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The error's kind: `out_of_memory`, `stream_misuse`, ...
    pub kind: &'static str,
    /// The message, cut at [`MAX_MESSAGE_LEN`] bytes on a character boundary.
    pub message: Box<str>,
}
