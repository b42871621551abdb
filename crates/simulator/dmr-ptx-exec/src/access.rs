//! The kinds of accesses that the detectors of races tell apart.

/// The effect of an access on a byte, and whether it is strong: atomic or volatile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessKind {
    /// A plain read.
    Read,
    /// A plain write.
    Write,
    /// An atomic or volatile read.
    StrongRead,
    /// An atomic or volatile write; an atomic change.
    StrongWrite,
    /// A strong write of global memory that is atomic for the threads of its block alone.
    BlockWrite,
}

impl AccessKind {
    #[inline]
    pub(crate) fn read(strong: bool) -> Self {
        if strong { Self::StrongRead } else { Self::Read }
    }

    #[inline]
    pub(crate) fn write(strong: bool) -> Self {
        if strong { Self::StrongWrite } else { Self::Write }
    }

    #[inline]
    pub(crate) fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::StrongRead)
    }

    #[inline]
    pub(crate) fn is_strong(self) -> bool {
        !matches!(self, Self::Read | Self::Write)
    }

    /// Returns what the access is, for a report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::StrongRead => "atomic read",
            Self::StrongWrite | Self::BlockWrite => "atomic write",
        }
    }
}
