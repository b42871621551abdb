//! The kinds of accesses.

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessKind {
    Read,
    /// A read by an atomic operation of a kernel.
    AtomicRead,
    Write,
    /// A write by an atomic operation of a kernel.
    AtomicWrite,
    /// A plain read of bytes that the launch has written before by atomic operations: it needs no
    /// earlier content, but it can race with the atomic operations of others.
    ReadBack,
    /// A wait of a stream for a word.
    WordRead,
    /// A write of a word by a stream.
    WordWrite,
}

impl AccessKind {
    #[inline]
    pub(crate) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::AtomicWrite | Self::WordWrite)
    }

    /// Returns whether it can race with any other access. Two accesses that are not plain never
    /// race with each other.
    #[inline]
    pub(crate) fn is_plain(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::ReadBack)
    }
}
