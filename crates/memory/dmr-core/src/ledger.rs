//! The waits that a use of a block needs, and the record of its past uses: pure code, no driver, no
//! locks.

mod parts;

use std::fmt;

use smallvec::SmallVec;

use crate::Access;

pub use parts::PartLedger;

/// Bits of a [`UseId`] that hold the sequence number; the stream slot is above them.
const SEQ_BITS: u32 = 52;

/// The id of a use: the slot of its stream and its sequence number there.
///
/// The slot stands for the stream and not for a lease of it: two leases of one slot are one CUDA
/// stream, on which work is ordered without an event. A ledger belongs to one stream pool, so the
/// slot is enough.
///
/// Sequence numbers begin at 1. The number of a use is taken after its work was submitted and
/// before an event is recorded for it: so a use comes after every use of its stream with a smaller
/// number, whichever thread commits first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UseId(u64);

impl UseId {
    /// The largest sequence number.
    pub const MAX_SEQ: u64 = (1 << SEQ_BITS) - 1;

    /// Makes the id of use number `seq` of the stream in `slot`. A number above
    /// [`MAX_SEQ`](Self::MAX_SEQ) becomes `MAX_SEQ`, which a stream reaches after 52 days at one
    /// use per nanosecond.
    #[must_use]
    #[inline]
    pub const fn new(slot: usize, seq: u64) -> Self {
        let seq = if seq > Self::MAX_SEQ { Self::MAX_SEQ } else { seq };
        Self((slot as u64) << SEQ_BITS | seq)
    }

    /// As [`new`](Self::new), for a number that is known to be at most [`MAX_SEQ`](Self::MAX_SEQ).
    #[must_use]
    #[inline(always)]
    pub const fn from_parts(slot: usize, seq: u64) -> Self {
        debug_assert!(seq <= Self::MAX_SEQ);
        Self((slot as u64) << SEQ_BITS | seq)
    }

    /// Returns the use in a word that [`get`](Self::get) returned; `None` for 0.
    #[must_use]
    #[inline]
    pub const fn from_word(word: u64) -> Option<Self> {
        if word == 0 { None } else { Some(Self(word)) }
    }

    /// Returns both numbers in one word, which is never 0.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the slot of its stream.
    #[must_use]
    #[inline]
    pub const fn slot(self) -> usize {
        (self.0 >> SEQ_BITS) as usize
    }

    /// Returns its sequence number.
    #[must_use]
    #[inline]
    pub const fn seq(self) -> u64 {
        self.0 & Self::MAX_SEQ
    }

    /// Returns whether a wait for this use is also a wait for `other`, by stream order alone.
    #[must_use]
    #[inline]
    pub const fn covers(self, other: Self) -> bool {
        self.slot() == other.slot() && self.0 >= other.0
    }
}

impl fmt::Debug for UseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "use {} of stream {}", self.seq(), self.slot())
    }
}

/// The uses of one block that later uses may have to wait for: the last write, and the latest read
/// of each stream since that write.
///
/// Every method keeps this invariant:
///
/// > Every finished use is an entry, or ordered before one, or known to be done; and every read in
/// > the set is ordered after the last write.
///
/// Two rules keep it:
///
/// - A read replaces the earlier read *of its own stream*, because stream order puts the one after
///   the other. It never replaces another stream's read: two reads are not ordered, so the second
///   reader would hide the first.
/// - A write replaces all entries, because its stream has waited for all of them.
///
/// The caller is responsible for the second rule. It queues the waits that [`waits`](Self::waits)
/// returns on the stream *before it records the event of the entry*, and commits no conflicting use
/// of another stream in between (an open window refuses it). A use that is declared only after its
/// work was submitted needs the same waits, between the work and the event.
///
/// By the second half of the invariant, a wait for a read includes the write before it: a stream
/// that waits for one of the reads, or has made one, comes after the write and does not wait for it
/// again.
///
/// However many uses happen, there are at most as many entries as streams, plus one.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    last_write: Option<UseId>,
    reads: SmallVec<[UseId; INLINE_READS]>,
}

/// Reads kept without a heap allocation: most blocks are read by one or two streams.
const INLINE_READS: usize = 2;

impl Ledger {
    /// Makes a ledger without entries: the next use waits for nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the last write is of the stream in `slot`.
    #[must_use]
    #[inline(always)]
    pub fn is_written_on(&self, slot: usize) -> bool {
        self.last_write.is_some_and(|write| write.slot() == slot)
    }

    /// Makes this the last write: of a stream that has waited for all uses in the ledger, which has
    /// no reads.
    #[inline(always)]
    pub fn set_last_write(&mut self, write: UseId) {
        debug_assert!(self.reads.is_empty());
        self.last_write = Some(write);
    }

    /// Makes the ledger of a new block: its allocation counts as a write on its home stream.
    #[must_use]
    pub fn allocated(home: UseId) -> Self {
        Self { last_write: Some(home), reads: SmallVec::new() }
    }

    /// Removes all entries, and keeps the ledger's memory on the host heap for the next block.
    #[inline(always)]
    pub fn clear(&mut self) {
        if !self.reads.is_empty() {
            self.reads.clear();
        }
        self.last_write = None;
    }

    /// Returns the uses that the stream in `slot` must wait for before it uses the block.
    ///
    /// A read waits for the last write. A write waits for the latest read of every other stream,
    /// or for the last write if there is no read since. Uses of the stream itself are not included.
    #[inline]
    pub fn waits(&self, slot: usize, access: Access) -> impl Iterator<Item = UseId> {
        let after_the_write = if access.writes() {
            !self.reads.is_empty()
        } else {
            self.reads.iter().any(|read| read.slot() == slot)
        };
        let write = self.last_write.filter(|_| !after_the_write);
        let reads = if access.writes() { self.reads.as_slice() } else { &[] };
        reads.iter().copied().chain(write).filter(move |entry| entry.slot() != slot)
    }

    /// Calls `visit` with each use that [`waits`](Self::waits) returns; faster in the common case
    /// of no read since the last write.
    #[inline(always)]
    pub fn visit_waits(&self, slot: usize, access: Access, mut visit: impl FnMut(UseId)) {
        if !self.reads.is_empty() {
            self.waits(slot, access).for_each(visit);
        } else if let Some(write) = self.last_write.filter(|write| write.slot() != slot) {
            visit(write);
        }
    }

    /// Returns the uses, of all streams, that the free of the block must come after: the latest
    /// read of every stream, or the last write if there is no read since.
    ///
    /// If all of them are on one stream, a free queued there waits for no other stream.
    pub fn free_waits(&self) -> impl Iterator<Item = UseId> {
        let write = self.last_write.filter(|_| self.reads.is_empty());
        self.reads.iter().copied().chain(write)
    }

    /// Calls `visit` with each use that [`free_waits`](Self::free_waits) returns.
    #[inline]
    pub fn visit_free_waits(&self, mut visit: impl FnMut(UseId)) {
        for read in self.reads.as_slice() {
            visit(*read);
        }
        if let Some(write) = self.last_write.filter(|_| self.reads.is_empty()) {
            visit(write);
        }
    }

    /// Records a finished use, unless a later use of the same stream was committed first and covers
    /// it.
    #[inline]
    pub fn commit(&mut self, access: Access, used: UseId) {
        if self.last_write.is_some_and(|write| write.covers(used)) {
            return;
        }
        if !access.writes() {
            return self.commit_read(used);
        }
        self.last_write = Some(used);
        if !self.reads.is_empty() {
            // A read of the same stream that comes after this write stays, as the only one.
            self.reads.retain(|read| read.slot() == used.slot() && !used.covers(*read));
        }
    }

    #[inline]
    fn commit_read(&mut self, used: UseId) {
        match self.reads.iter_mut().find(|read| read.slot() == used.slot()) {
            Some(read) => *read = used.max(*read),
            None => self.reads.push(used),
        }
    }

    /// Returns all entries: reads first, then the last write.
    pub fn entries(&self) -> impl Iterator<Item = UseId> {
        self.reads.iter().copied().chain(self.last_write)
    }
}
