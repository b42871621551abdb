//! Kinds of access of device work to the memory of a block.

/// The kind of access of device work to the memory of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads it.
    Read,
    /// Overwrites it.
    Write,
    /// Reads and writes it.
    ReadWrite,
}

impl Access {
    /// Returns whether the work reads.
    #[must_use]
    #[inline]
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// Returns whether the work writes.
    #[must_use]
    #[inline]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }

    /// Returns whether two uses by different streams must be ordered: at least one of them writes.
    #[must_use]
    #[inline]
    pub const fn conflicts_with(self, other: Self) -> bool {
        self.writes() || other.writes()
    }

    /// Returns the access that includes both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        match (self.reads() || other.reads(), self.writes() || other.writes()) {
            (true, true) => Self::ReadWrite,
            (false, true) => Self::Write,
            _ => Self::Read,
        }
    }
}
