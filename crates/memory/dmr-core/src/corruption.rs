//! The report of a forbidden write that the debug guard has found.

use std::fmt;

use crate::human::human_bytes;
use crate::{AllocTag, Generation, StreamId};

/// A write outside of a block, or after it was freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// The place of the wrong byte: before or behind the block, or in a freed one.
    pub kind: CorruptionKind,
    /// The block.
    pub generation: Generation,
    /// Its tag.
    pub tag: AllocTag,
    /// Its requested bytes.
    pub bytes: usize,
    /// Its home stream.
    pub alloc_stream: StreamId,
    /// The first overwritten byte, relative to the block's start; negative before it.
    pub offset: i64,
    /// The backtrace of its allocation, if backtraces are captured.
    pub allocated_at: Option<Box<str>>,
}

/// The place of a forbidden write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CorruptionKind {
    /// Past its end.
    Overrun,
    /// Before its start.
    Underrun,
    /// Inside, after it was deallocated.
    WriteAfterFree,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            CorruptionKind::Overrun => "written past its end",
            CorruptionKind::Underrun => "written before its start",
            CorruptionKind::WriteAfterFree => "written after it was deallocated",
        };
        let generation = self.generation;
        let tag = self.tag;
        let size = human_bytes(self.bytes as u64);
        let stream = self.alloc_stream;
        let offset = self.offset;
        write!(
            f,
            "block {generation} (tag \"{tag}\", {size}, {stream}) was {what}: the first bad byte \
             is at offset {offset} of {}; to find the kernel, run compute-sanitizer with the \
             backend direct-tracked",
            self.bytes
        )?;
        match &self.allocated_at {
            Some(backtrace) => write!(f, "; it was allocated at\n{backtrace}"),
            None => Ok(()),
        }
    }
}
