//! Reads and writes of a block by device work, and the tokens between preparing and finishing a
//! use.

use smallvec::SmallVec;

pub use crate::access::Access;
use crate::{BlockId, BlockSlot, ByteRange, Generation, StreamId};

/// A block that a launch uses, the bytes of it, and the kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockUse {
    /// The block.
    pub block: BlockId,
    /// The launch's access to it.
    pub access: Access,
    /// The bytes that the launch reads or writes; [`ByteRange::WHOLE`] for the whole block.
    pub bytes: ByteRange,
}

impl BlockUse {
    /// Makes a use of a whole block.
    #[must_use]
    #[inline]
    pub const fn new(block: BlockId, access: Access) -> Self {
        Self::of_bytes(block, access, ByteRange::WHOLE)
    }

    /// Makes a use of a part of a block: of these bytes and no others.
    #[must_use]
    #[inline]
    pub const fn of_bytes(block: BlockId, access: Access, bytes: ByteRange) -> Self {
        Self { block, access, bytes }
    }
}

/// An open window: a use that was prepared and is not yet finished. Belongs to [`UseTokens`].
#[derive(Debug, PartialEq, Eq)]
pub struct UseToken {
    generation: Generation,
    slot: BlockSlot,
    /// The ticket, and the access in the two lowest bits.
    ticket_and_access: u32,
}

const _: () = assert!(size_of::<UseToken>() == 16);

impl UseToken {
    /// The largest ticket.
    pub const MAX_TICKET: u32 = u32::MAX >> 2;

    /// Returns the generation of the block in use.
    #[must_use]
    #[inline]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the index of the block in the resource's table of blocks.
    #[must_use]
    #[inline]
    pub const fn slot(&self) -> BlockSlot {
        self.slot
    }

    /// Returns the access of the work.
    #[must_use]
    #[inline]
    pub const fn access(&self) -> Access {
        match self.ticket_and_access & 3 {
            0 => Access::Read,
            1 => Access::Write,
            _ => Access::ReadWrite,
        }
    }

    /// Returns the number by which the resource finds the window among the open windows of the
    /// block.
    #[must_use]
    #[inline]
    pub const fn ticket(&self) -> u32 {
        self.ticket_and_access >> 2
    }
}

/// The open windows of one launch, on one stream.
///
/// Linear: [`UseTracking::finish`](crate::UseTracking::finish) or
/// [`cancel`](crate::UseTracking::cancel) closes the windows. Dropping it instead can leak the
/// blocks, never corrupt them. Only a resource can add a window, which is `unsafe`:
///
/// ```compile_fail,E0133
/// # use dmr_core::{Access, BlockId, StreamId, UseTokens};
/// fn forge(pinned: BlockId, stream: StreamId) -> UseTokens {
///     let mut tokens = UseTokens::new(stream);
///     tokens.push(pinned, Access::Write, 1);
///     tokens
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "uses that are never finished keep their blocks from being freed"]
pub struct UseTokens {
    stream: StreamId,
    launch: u64,
    tokens: SmallVec<[UseToken; 8]>,
}

const _: () = assert!(size_of::<UseTokens>() <= 160);

impl UseTokens {
    /// Makes tokens without windows, for `stream`. Up to 8 windows need no allocation on the host
    /// heap.
    #[inline]
    pub fn new(stream: StreamId) -> Self {
        Self { stream, launch: 0, tokens: SmallVec::new() }
    }

    /// Returns the number that the resource has [given the launch](Self::set_launch); 0 before.
    #[must_use]
    #[inline]
    pub const fn launch(&self) -> u64 {
        self.launch
    }

    /// Sets the number of the launch, for a resource that numbers launches.
    /// [`clear`](Self::clear) removes it, and [`truncate`](Self::truncate) with the last window.
    ///
    /// # Safety
    ///
    /// The caller is that resource, and it has begun this launch on the stream of the tokens and
    /// not finished it. Finishing the tokens ends all windows of the launch: with the number of
    /// another launch, it would end windows under a kernel that still runs.
    #[inline]
    #[allow(unsafe_code, reason = "opening windows is what a resource does")]
    pub unsafe fn set_launch(&mut self, launch: u64) {
        self.launch = launch;
    }

    /// Adds a window that is open on [`stream`](Self::stream). `ticket` is the number by which the
    /// resource that opened the window finds it among the open windows of the block; the upper bits
    /// of a number above [`MAX_TICKET`](UseToken::MAX_TICKET) are lost.
    ///
    /// # Safety
    ///
    /// The caller is that resource, has just opened the window on this stream, and adds it once. A
    /// token closes its window, and only the window prevents memory from being freed, or read and
    /// written by the host, while the device uses it. The caller may also be a resource that has no
    /// memory, or no windows, so that nothing depends on the token.
    #[inline]
    #[allow(unsafe_code, reason = "opening windows is what a resource does")]
    pub unsafe fn push(&mut self, block: BlockId, access: Access, ticket: u32) {
        let ticket_and_access = ticket << 2 | access as u32;
        let generation = block.generation();
        let slot = block.slot();
        self.tokens.push(UseToken { generation, slot, ticket_and_access });
    }

    /// Makes room for this many more windows, so that adding them allocates nothing.
    pub fn reserve(&mut self, more: usize) {
        self.tokens.reserve(more);
    }

    /// Returns the stream of the launch.
    #[must_use]
    #[inline]
    pub const fn stream(&self) -> StreamId {
        self.stream
    }

    /// Replaces the stream of the launch, for a resource that has resolved it. Returns `false`, and
    /// changes nothing, if a window is open on another stream.
    #[must_use]
    #[inline]
    pub fn resolve(&mut self, stream: StreamId) -> bool {
        let is_free = self.tokens.is_empty();
        if is_free {
            self.stream = stream;
        }
        is_free || self.stream == stream
    }

    /// Removes the windows from index `len` on. If none is left, removes the number of the launch,
    /// too: the next windows are those of another one.
    ///
    /// # Safety
    ///
    /// The caller is the resource that has opened these windows, and has closed them: the number of
    /// the launch may end them when the launch ends, although work was submitted for them that is
    /// not recorded.
    #[inline]
    #[allow(unsafe_code, reason = "closing windows is what a resource does")]
    pub unsafe fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        if self.tokens.is_empty() {
            self.launch = 0;
        }
    }

    /// Removes all windows, which have been closed, and the number of the launch.
    #[inline]
    pub fn clear(&mut self) {
        self.launch = 0;
        self.tokens.clear();
    }

    /// Returns the number of open windows.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether no window is open.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the windows.
    #[inline]
    pub fn as_slice(&self) -> &[UseToken] {
        &self.tokens
    }

    /// Returns an iterator over the windows.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, UseToken> {
        self.tokens.iter()
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
