//! What device work does to a block, and the tokens between preparing and finishing a use.

use smallvec::SmallVec;

use crate::{BlockId, BlockSlot, Generation, StreamId};

/// What device work does to the memory of a block.
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
    /// Whether the work reads.
    #[must_use]
    #[inline]
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// Whether the work writes.
    #[must_use]
    #[inline]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }

    /// Whether two uses by different streams must be ordered: at least one of them writes.
    #[must_use]
    #[inline]
    pub const fn conflicts_with(self, other: Self) -> bool {
        self.writes() || other.writes()
    }

    /// One access that stands for both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        match (self.reads() || other.reads(), self.writes() || other.writes()) {
            (true, true) => Self::ReadWrite,
            (false, true) => Self::Write,
            _ => Self::Read,
        }
    }
}

/// One block and what a launch does to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockUse {
    /// The block.
    pub block: BlockId,
    /// What the launch does to it.
    pub access: Access,
}

impl BlockUse {
    /// A use of `block`.
    #[must_use]
    pub const fn new(block: BlockId, access: Access) -> Self {
        Self { block, access }
    }
}

/// An open window: a use that was prepared and is not yet finished.
///
/// Linear: goes back through `finish_block_use` or `cancel_uses`. Forgetting it can leak the
/// block, never corrupt it. Only a resource can make one, which is `unsafe`:
///
/// ```compile_fail,E0133
/// # use dmr_core::{Access, BlockId, StreamId, UseToken};
/// fn forge(pinned: BlockId, stream: StreamId) -> UseToken {
///     UseToken::new(pinned, stream, Access::Write, 1)
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a use that is never finished keeps its block from being freed"]
pub struct UseToken {
    // The fields of a `BlockId`, where `access` fits in between: the tokens of a launch lie in one
    // value, which is moved.
    ptr: u64,
    generation: Generation,
    alloc_stream: StreamId,
    stream: StreamId,
    ticket: u64,
    slot: BlockSlot,
    device_ordinal: u16,
    access: Access,
}

const _: () = assert!(size_of::<UseToken>() == 48);

impl UseToken {
    /// A token for a window; `ticket` is the number by which the resource that opened it finds it.
    ///
    /// # Safety
    ///
    /// The caller is that resource, has just opened the window, and makes no second token for it. A token
    /// closes its window, which is all that keeps memory from being freed, or given to the host, while
    /// the device uses it. Or nothing ever depends on the window: the resource keeps no memory, or no
    /// window at all.
    #[inline]
    #[allow(unsafe_code, reason = "opening windows is what a resource does")]
    pub const unsafe fn new(block: BlockId, stream: StreamId, access: Access, ticket: u64) -> Self {
        Self {
            ptr: block.ptr(),
            generation: block.generation(),
            alloc_stream: block.alloc_stream(),
            stream,
            ticket,
            slot: block.slot(),
            device_ordinal: block.device_ordinal() as u16,
            access,
        }
    }

    /// The block in use.
    #[must_use]
    #[inline]
    pub const fn block(&self) -> BlockId {
        let identity = (self.ptr, self.generation, self.alloc_stream);
        BlockId::from_fields(identity, self.slot, self.device_ordinal)
    }

    /// The using stream.
    #[must_use]
    #[inline]
    pub const fn stream(&self) -> StreamId {
        self.stream
    }

    /// What the work does.
    #[must_use]
    #[inline]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// The number by which the resource knows the window.
    #[must_use]
    #[inline]
    pub const fn ticket(&self) -> u64 {
        self.ticket
    }
}

/// The open windows of one launch, on one stream.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "uses that are never finished keep their blocks from being freed"]
pub struct UseTokens {
    stream: StreamId,
    tokens: SmallVec<[UseToken; 8]>,
}

impl UseTokens {
    /// No windows yet, on `stream`. Up to 8 need no allocation on the host heap.
    #[inline]
    pub fn new(stream: StreamId) -> Self {
        Self { stream, tokens: SmallVec::new() }
    }

    /// Adds an open window.
    #[inline]
    pub fn push(&mut self, token: UseToken) {
        self.tokens.push(token);
    }

    /// The using stream.
    #[must_use]
    #[inline]
    pub const fn stream(&self) -> StreamId {
        self.stream
    }

    /// How many windows are open.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether no window is open.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The windows.
    #[inline]
    pub fn as_slice(&self) -> &[UseToken] {
        &self.tokens
    }

    /// The windows.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, UseToken> {
        self.tokens.iter()
    }
}

impl IntoIterator for UseTokens {
    type Item = UseToken;
    type IntoIter = smallvec::IntoIter<[UseToken; 8]>;

    fn into_iter(self) -> Self::IntoIter {
        self.tokens.into_iter()
    }
}

impl<'a> IntoIterator for &'a UseTokens {
    type Item = &'a UseToken;
    type IntoIter = std::slice::Iter<'a, UseToken>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
