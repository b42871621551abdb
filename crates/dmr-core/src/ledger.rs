//! Which waits a use of a block needs, and what is remembered of it: pure code, no driver, no
//! locks.

use std::fmt;

use smallvec::SmallVec;

use crate::Access;

/// Bits of a [`UseId`] that hold the sequence number; the stream slot is above them.
const SEQ_BITS: u32 = 52;

/// A use, by number: the slot of its stream and its sequence number there.
///
/// The slot stands for the stream and not for a lease of it: two leases of one slot are one CUDA
/// stream, on which work is ordered without an event. A ledger belongs to one stream pool, so the slot
/// is enough.
///
/// Sequence numbers begin at 1. The number of a use is taken after its work was submitted and before an
/// event is recorded for it: so a use comes after every use of its stream with a smaller number,
/// whichever thread commits first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UseId(u64);

impl UseId {
    /// The largest sequence number.
    pub const MAX_SEQ: u64 = (1 << SEQ_BITS) - 1;

    /// The use number `seq` of the stream in `slot`. A larger number than [`MAX_SEQ`](Self::MAX_SEQ)
    /// becomes that: at one use per nanosecond a stream has as many after 52 days.
    #[must_use]
    #[inline]
    pub const fn new(slot: usize, seq: u64) -> Self {
        let seq = if seq > Self::MAX_SEQ { Self::MAX_SEQ } else { seq };
        Self((slot as u64) << SEQ_BITS | seq)
    }

    /// The use in a word that [`get`](Self::get) returned; `None` for 0.
    #[must_use]
    #[inline]
    pub const fn from_word(word: u64) -> Option<Self> {
        if word == 0 { None } else { Some(Self(word)) }
    }

    /// Both numbers in one word, which is never 0.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The slot of its stream.
    #[must_use]
    #[inline]
    pub const fn slot(self) -> usize {
        (self.0 >> SEQ_BITS) as usize
    }

    /// Its sequence number.
    #[must_use]
    #[inline]
    pub const fn seq(self) -> u64 {
        self.0 & Self::MAX_SEQ
    }

    /// Whether a wait for this use is a wait for `other`, by stream order alone.
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

/// What is remembered of the uses of one block: the last write, and the latest read of each
/// stream since that write.
///
/// The one hard question is what may be forgotten. Every method keeps this invariant:
///
/// > Every finished use is an entry, or ordered before one, or known to be done; and every read in
/// > the set is ordered after the last write.
///
/// Two rules are enough for it, and each is sound for one reason only:
///
/// - A read replaces the earlier read *of its own stream*, because stream order puts the one after the
///   other. It never replaces another stream's read: nothing orders two reads, and a second reader
///   would hide the first.
/// - A write replaces everything, because its stream waited for everything.
///
/// The second rule is a duty of the caller. The waits that [`waits`](Self::waits) returns are
/// queued on the stream *before the event of the entry is recorded*, and no conflicting use of
/// another stream is committed in between (an open window refuses it). A use that is declared
/// only after its work was submitted needs the same waits, between the work and the event.
///
/// Because of the second half of the invariant, reads stand for the write before them: a stream that
/// waits for one of them, or is the stream of one, comes after the write and does not wait for it again.
///
/// There are at most as many entries as streams, plus one, however many uses happen.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    last_write: Option<UseId>,
    reads: SmallVec<[UseId; INLINE_READS]>,
}

/// Reads kept without a heap allocation: most blocks are read by one or two streams.
const INLINE_READS: usize = 2;

impl Ledger {
    /// The ledger of a block that no work needs to be waited for.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The ledger of a block just allocated: that counts as a write on its home stream.
    #[must_use]
    pub fn allocated(home: UseId) -> Self {
        Self { last_write: Some(home), reads: SmallVec::new() }
    }

    /// Makes it what [`allocated`](Self::allocated) returns, and keeps its memory on the host heap:
    /// for the next block.
    #[inline(always)]
    pub fn restart(&mut self, home: UseId) {
        self.forget();
        self.last_write = Some(home);
    }

    /// Forgets everything, and keeps its memory on the host heap: for the next block.
    #[inline(always)]
    pub fn forget(&mut self) {
        if !self.reads.is_empty() {
            self.reads.clear();
        }
        self.last_write = None;
    }

    /// What the stream in `slot` must wait for before it uses the block.
    ///
    /// A read waits for the last write. A write waits for the latest read of every other stream,
    /// or for the last write if nothing has read since. Nothing of the stream itself is in it.
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

    /// Calls `visit` with each of [`waits`](Self::waits): the shorter way where nothing has read since
    /// the last write, which is what most uses find.
    #[inline(always)]
    pub fn visit_waits(&self, slot: usize, access: Access, mut visit: impl FnMut(UseId)) {
        if !self.reads.is_empty() {
            self.waits(slot, access).for_each(visit);
        } else if let Some(write) = self.last_write.filter(|write| write.slot() != slot) {
            visit(write);
        }
    }

    /// What the free of the block must come after, on whichever streams that is.
    ///
    /// The latest read of every stream, or the last write if nothing has read since. Where all
    /// of it is on one stream, a free queued there waits for nothing.
    pub fn free_waits(&self) -> impl Iterator<Item = UseId> {
        let write = self.last_write.filter(|_| self.reads.is_empty());
        self.reads.iter().copied().chain(write)
    }

    /// Calls `visit` with each of [`free_waits`](Self::free_waits).
    #[inline]
    pub fn visit_free_waits(&self, mut visit: impl FnMut(UseId)) {
        for read in self.reads.as_slice() {
            visit(*read);
        }
        if let Some(write) = self.last_write.filter(|_| self.reads.is_empty()) {
            visit(write);
        }
    }

    /// Remembers a finished use, unless a later use of the same stream was committed first and covers
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

    /// Forgets the entries for which `keep` returns `false`: the caller has found that they are done.
    pub fn retain(&mut self, mut keep: impl FnMut(UseId) -> bool) {
        self.reads.retain(|read| keep(*read));
        self.last_write = self.last_write.filter(|write| keep(*write));
    }

    /// All entries: reads first, then the last write.
    pub fn entries(&self) -> impl Iterator<Item = UseId> {
        self.reads.iter().copied().chain(self.last_write)
    }
}
