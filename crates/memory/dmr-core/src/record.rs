//! A row of an allocation log or trace: the columns that both share, and writing a row as CSV.

use std::fmt;

use crate::{AllocTag, ResourceError};

/// The columns of the CSV format, in the order in which they are written. Readers find them by
/// their names in the header; a trace may have fewer.
pub const COLUMNS: [&str; 13] = [
    "order",
    "time_ns",
    "thread",
    "action",
    "ptr",
    "bytes",
    "stream",
    "device",
    "tag",
    "query_id",
    "generation",
    "result",
    "message",
];

/// The maximum bytes of an error message in a row.
pub const MAX_MESSAGE_LEN: usize = 256;

/// The method that was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordAction {
    /// `allocate`.
    Allocate,
    /// `deallocate`.
    Deallocate,
    /// `try_grow` that made the block larger, or failed.
    Grow,
    /// `try_reap` or `reap_pending`.
    Reap,
}

impl RecordAction {
    /// Returns its name in the CSV format.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::Deallocate => "free",
            Self::Grow => "grow",
            Self::Reap => "reap",
        }
    }
}

/// One call on a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationRecord {
    /// The position of the call among the others: rows are written in any order, and a reader sorts
    /// them by this number. In a log it is the time stamp.
    pub order: u64,
    /// Wall-clock nanoseconds: in a log since the epoch, in a trace since its start.
    pub time_ns: u64,
    /// The calling thread: in a log a small number, unique in the process.
    pub thread: u64,
    /// The method that was called.
    pub action: RecordAction,
    /// The block's address, or any id that pairs an allocation with its free; 0 where there is no
    /// block.
    pub ptr: u64,
    /// Requested bytes; for a growth, the block's bytes afterwards; for a reap, the bytes that it
    /// freed.
    pub bytes: u64,
    /// The stream: in a log the slot of the block's home stream in its pool, for an allocation that
    /// failed that of the stream of the request, and 0 for a reap.
    pub stream: u64,
    /// CUDA device ordinal.
    pub device: u32,
    /// The tag of the request.
    pub tag: AllocTag,
    /// The query that the call is part of; 0 for none.
    pub query_id: u64,
    /// The block's generation; 0 where it is not known.
    pub generation: u64,
    /// The error of the call; `None` if it succeeded. Boxed, so that the record of a call that
    /// succeeded stays small.
    pub failure: Option<Box<Failure>>,
}

impl AllocationRecord {
    /// Returns the row as CSV, without a line break; its columns are [`COLUMNS`].
    ///
    /// One row is one line: a line break inside a tag or a message is written as a space. A tag
    /// is cut at [`AllocTag::MAX_LEN`] bytes, a message at [`MAX_MESSAGE_LEN`].
    #[must_use]
    pub const fn csv_row(&self) -> CsvRow<'_> {
        CsvRow(self)
    }
}

/// Writes a record as one line of CSV, through `Display`.
#[derive(Clone, Copy, Debug)]
pub struct CsvRow<'a>(&'a AllocationRecord);

impl fmt::Display for CsvRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        let mut numbers = Numbers::new();
        numbers.decimal(r.order).decimal(r.time_ns).decimal(r.thread);
        numbers.text(r.action.as_str().as_bytes()).text(b",");
        numbers.hexadecimal(r.ptr).decimal(r.bytes).decimal(r.stream).decimal(r.device.into());
        f.write_str(numbers.as_str())?;
        csv_text(f, cut(r.tag.name(), AllocTag::MAX_LEN))?;
        f.write_str(Numbers::new().text(b",").decimal(r.query_id).decimal(r.generation).as_str())?;
        match &r.failure {
            None => {
                f.write_str(RESULT_OK)?;
                f.write_str(",")
            }
            Some(failure) => {
                csv_text(f, failure.kind)?;
                f.write_str(",")?;
                csv_text(f, cut(&failure.message, MAX_MESSAGE_LEN))
            }
        }
    }
}

/// Text of numbers, each with a comma after it. A log has millions of rows, and the standard
/// formatting takes several times as long.
struct Numbers {
    /// Large enough for seven numbers of 64 bits, an action and their commas.
    text: [u8; 192],
    len: usize,
}

impl Numbers {
    const fn new() -> Self {
        Self { text: [0; 192], len: 0 }
    }

    fn text(&mut self, text: &[u8]) -> &mut Self {
        if let Some(room) = self.text.get_mut(self.len..self.len + text.len()) {
            room.copy_from_slice(text);
            self.len += text.len();
        }
        self
    }

    fn decimal(&mut self, mut number: u64) -> &mut Self {
        let mut digits = [b','; 21];
        let mut start = digits.len() - 1;
        loop {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return self.text(&digits[start..]);
            }
        }
    }

    fn hexadecimal(&mut self, mut number: u64) -> &mut Self {
        let mut digits = [b','; 17];
        let mut start = digits.len() - 1;
        loop {
            start -= 1;
            digits[start] = b"0123456789abcdef"[(number % 16) as usize];
            number /= 16;
            if number == 0 {
                return self.text(b"0x").text(&digits[start..]);
            }
        }
    }

    fn as_str(&self) -> &str {
        str::from_utf8(&self.text[..self.len]).unwrap_or_default()
    }
}

/// The column `result` of a call that succeeded.
pub const RESULT_OK: &str = "ok";

/// The error of a recorded call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The error's kind, one of [`KINDS`](Self::KINDS).
    pub kind: &'static str,
    /// The message, cut at [`MAX_MESSAGE_LEN`] bytes on a character boundary.
    pub message: Box<str>,
}

impl Failure {
    /// The kinds of all errors. The last one stands for unknown ones.
    pub const KINDS: [&'static str; 24] = [
        "invalid_size",
        "out_of_memory",
        "out_of_budget",
        "driver",
        "stream_misuse",
        "capacity",
        "window_conflict",
        "stream_capturing",
        "use_after_free",
        "out_of_bounds",
        "foreign_block",
        "host_memory",
        "part_of_block",
        "device_lost",
        "forked_process",
        "not_given_away",
        "foreign_memory",
        "still_mapped",
        "no_virtual_memory",
        "other_pool",
        "no_peer_access",
        "not_adopted",
        "corrupted",
        "other",
    ];

    /// Makes a failure with a kind that was read from a log. An unknown kind becomes `other`.
    #[must_use]
    pub fn new(kind: &str, message: &str) -> Self {
        let known = Self::KINDS.into_iter().find(|known| *known == kind);
        Self { kind: known.unwrap_or("other"), message: cut(message, MAX_MESSAGE_LEN).into() }
    }
}

impl From<&ResourceError> for Failure {
    fn from(error: &ResourceError) -> Self {
        use ResourceError as E;
        let kind = match error {
            E::InvalidSize { .. } => "invalid_size",
            E::OutOfMemory { .. } => "out_of_memory",
            E::OutOfBudget { .. } => "out_of_budget",
            E::Driver { .. } => "driver",
            E::StreamMisuse { .. } => "stream_misuse",
            E::Capacity { .. } => "capacity",
            E::WindowConflict { .. } => "window_conflict",
            E::StreamCapturing { .. } => "stream_capturing",
            E::UseAfterFree { .. } => "use_after_free",
            E::OutOfBounds { .. } => "out_of_bounds",
            E::ForeignBlock { .. } => "foreign_block",
            E::HostMemory { .. } => "host_memory",
            E::WrongMemory { .. } => "wrong_memory",
            E::PartOfBlock { .. } => "part_of_block",
            E::DeviceLost { .. } => "device_lost",
            E::Corrupted(_) => "corrupted",
            E::ForkedProcess { .. } => "forked_process",
            E::NotGivenAway { .. } => "not_given_away",
            E::Library { .. } => "library",
            E::ForeignMemory { .. } => "foreign_memory",
            E::StillMapped { .. } => "still_mapped",
            E::NoVirtualMemory { .. } => "no_virtual_memory",
            E::OtherPool { .. } => "other_pool",
            E::NoPeerAccess { .. } => "no_peer_access",
            E::NotAdopted { .. } => "not_adopted",
        };
        Self::new(kind, &error.to_string())
    }
}

/// Returns the longest prefix of `text` that has at most `len` bytes and ends between characters.
fn cut(text: &str, len: usize) -> &str {
    if text.len() <= len {
        return text;
    }
    match text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|&end| end <= len).last()
    {
        Some(end) => &text[..end],
        None => "",
    }
}

/// Writes a field, quoted if it has to be.
fn csv_text(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    use fmt::Write;
    if !text.bytes().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r')) {
        return f.write_str(text);
    }
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\"\"")?,
            '\n' | '\r' => f.write_char(' ')?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_one_line_whatever_the_tag_and_the_message_hold() {
        let record = AllocationRecord {
            order: 7,
            time_ns: 12,
            thread: 3,
            action: RecordAction::Allocate,
            ptr: 0xa00,
            bytes: 100,
            stream: 2,
            device: 1,
            tag: AllocTag::new("a \"b\", c"),
            query_id: 5,
            generation: 9,
            failure: Some(Box::new(Failure::new("out_of_memory", "no\r\nroom"))),
        };
        assert_eq!(
            record.csv_row().to_string(),
            "7,12,3,allocate,0xa00,100,2,1,\"a \"\"b\"\", c\",5,9,out_of_memory,\"no  room\""
        );
    }

    #[test]
    fn numbers_are_written_at_their_limits() {
        let record = AllocationRecord {
            order: u64::MAX,
            time_ns: u64::MAX,
            thread: u64::MAX,
            action: RecordAction::Allocate,
            ptr: u64::MAX,
            bytes: u64::MAX,
            stream: u64::MAX,
            device: u32::MAX,
            tag: AllocTag::UNTAGGED,
            query_id: u64::MAX,
            generation: 0,
            failure: None,
        };
        let most = u64::MAX;
        assert_eq!(
            record.csv_row().to_string(),
            format!(
                "{most},{most},{most},allocate,{most:#x},{most},{most},{},,{most},0,ok,",
                u32::MAX
            )
        );
    }

    #[test]
    fn a_message_is_cut_between_characters_and_an_unknown_kind_is_other() {
        let long = format!("x{}", "é".repeat(MAX_MESSAGE_LEN));
        assert_eq!(Failure::new("driver", &long).message.len(), MAX_MESSAGE_LEN - 1);
        assert_eq!(Failure::new("from the future", "").kind, "other");
    }

    #[test]
    fn every_error_is_written_with_a_kind_of_the_list() {
        let stream = crate::StreamId::DEFAULT;
        let generation = crate::Generation::next();
        let usage = crate::Usage::default();
        let errors = [
            ResourceError::zero_size(),
            ResourceError::out_of_memory(1, 0, (0, 0), &usage),
            ResourceError::out_of_budget(AllocTag::UNTAGGED, 1, 1, 0, 0, Vec::new()),
            ResourceError::driver("cuMemAlloc_v2", 999, "CUDA_ERROR_UNKNOWN", 0),
            ResourceError::not_tracked(stream),
            ResourceError::capacity("streams", 1),
            ResourceError::window_conflict(generation, stream, stream, crate::Access::Read),
            ResourceError::stream_capturing(stream),
            ResourceError::use_after_free(generation),
            ResourceError::device_lost(0, "cuCtxSynchronize", 719),
            ResourceError::forked_process(0),
        ];
        let kinds: Vec<_> = errors.iter().map(|error| Failure::from(error).kind).collect();
        assert!(!kinds.contains(&"other"), "{kinds:?}");
        assert_eq!(kinds.iter().collect::<std::collections::HashSet<_>>().len(), kinds.len());
    }
}
