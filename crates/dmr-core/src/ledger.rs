//! Which waits a use of a block needs, and what is remembered of it: pure code, no driver, no
//! locks.

use std::iter::FusedIterator;

use smallvec::SmallVec;

use crate::{Access, StreamId};

/// Which CUDA stream an [`Entry`] is on.
///
/// Two keys are equal exactly when work on them is ordered without an event. So the key is the
/// slot of a [`StreamId`] and not the whole id: two leases of one slot are one CUDA stream, and
/// keying by lease would add waits and let a ledger grow with every lease. A ledger belongs to
/// one resource, hence to one pool, so the slot is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey(u32);

impl StreamKey {
    /// A key by number, for a pool that gives one slot to different CUDA streams in turn.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The key of a resolved id (not [`StreamId::DEFAULT`], whose stream only its pool knows).
    #[must_use]
    #[inline]
    pub const fn of(stream: StreamId) -> Self {
        Self(stream.slot() as u32)
    }

    /// The number.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A finished use, as the ledger remembers it: after `event`, the use is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<E> {
    /// The using stream.
    pub stream: StreamKey,
    /// Where the use stands among the uses of its stream. Numbers are taken after the work was
    /// submitted and before the event is recorded, so that an entry stands for every entry of
    /// its stream with a smaller number, whichever thread commits first.
    pub order: u64,
    /// What another stream waits for.
    pub event: E,
}

impl<E> Entry<E> {
    /// Whether waiting for this entry is waiting for `other`, by stream order alone.
    #[inline]
    fn stands_for(&self, other: &Self) -> bool {
        self.stream == other.stream && self.order >= other.order
    }
}

/// What is remembered of the uses of one block: the last write, and the latest read of each
/// stream since that write.
///
/// The one hard question is what may be forgotten. The answer is the invariant that every method
/// keeps:
///
/// > Every finished use is an entry, or ordered before one, or known to be done; and every read in
/// > the set is ordered after the last write.
///
/// Two rules are enough for it, and each is sound for one reason only:
///
/// - A read takes the place of the earlier read *of its own stream*, because stream order puts
///   the one after the other. It never takes the place of another stream's read: nothing orders
///   two reads, and a second reader would hide the first.
/// - A write takes the place of everything, because its stream waited for everything.
///
/// The second rule is a duty of the caller. The waits that [`waits`](Self::waits) asks for are
/// queued on the stream *before the event of the entry is recorded*, and no conflicting use of
/// another stream is committed in between (an open window refuses it). A use that is declared
/// only after its work was submitted needs the same waits, between the work and the event.
///
/// The second half of the invariant is why reads stand for the write before them: who waits for
/// one of them, or is one of them, is after the write and does not wait for it again.
///
/// There are at most as many entries as streams, plus one, however many uses happen. The type is
/// generic over the event handle `E`; it never looks inside.
#[derive(Clone, Debug)]
pub struct Ledger<E> {
    last_write: Option<Entry<E>>,
    reads: SmallVec<[Entry<E>; INLINE_READS]>,
}

/// Reads kept without a heap allocation: most blocks are read by one or two streams.
const INLINE_READS: usize = 2;

impl<E> Ledger<E> {
    /// A block that no work needs to be waited for.
    #[must_use]
    pub fn new() -> Self {
        Self { last_write: None, reads: SmallVec::new() }
    }

    /// A block just allocated: that counts as a write on its home stream.
    #[must_use]
    pub fn allocated(home: Entry<E>) -> Self {
        Self { last_write: Some(home), reads: SmallVec::new() }
    }

    /// Makes it what [`allocated`](Self::allocated) answers, and keeps its memory on the host heap:
    /// for the next block.
    #[inline(always)]
    pub fn restart(&mut self, home: Entry<E>) {
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

    /// What `stream` must wait for before it uses the block.
    ///
    /// A read waits for the last write. A write waits for the latest read of every other stream,
    /// or for the last write if nobody has read since. Nothing of the stream itself is in it.
    #[inline]
    pub fn waits(&self, stream: StreamKey, access: Access) -> impl Iterator<Item = &Entry<E>> {
        let after_the_write = if access.writes() {
            !self.reads.is_empty()
        } else {
            self.reads.iter().any(|read| read.stream == stream)
        };
        let write = self.last_write.as_ref().filter(|_| !after_the_write);
        let reads = if access.writes() { self.reads.as_slice() } else { &[] };
        reads.iter().chain(write).filter(move |entry| entry.stream != stream)
    }

    /// Calls `visit` with each of [`waits`](Self::waits): the shorter way where nobody has read since
    /// the last write, which is what most uses find.
    #[inline]
    pub fn visit_waits<'l>(
        &'l self,
        stream: StreamKey,
        access: Access,
        mut visit: impl FnMut(&'l Entry<E>),
    ) {
        if !self.reads.is_empty() {
            self.waits(stream, access).for_each(visit);
        } else if let Some(write) = self.last_write.as_ref().filter(|it| it.stream != stream) {
            visit(write);
        }
    }

    /// What the free of the block must come after, on whichever streams that is.
    ///
    /// The latest read of every stream, or the last write if nobody has read since. Where all
    /// of it is on one stream, a free queued there waits for nothing.
    pub fn free_waits(&self) -> impl Iterator<Item = &Entry<E>> {
        let write = self.last_write.as_ref().filter(|_| self.reads.is_empty());
        self.reads.iter().chain(write)
    }

    /// Remembers a finished use, and answers the entries that it takes the place of.
    ///
    /// Their events are not needed for this block any more. The new entry itself is among them
    /// if a later use of the same stream was committed first.
    #[inline]
    pub fn commit(&mut self, access: Access, entry: Entry<E>) -> Displaced<'_, E> {
        let outrun = self.last_write.as_ref().is_some_and(|write| write.stands_for(&entry));
        if outrun {
            Displaced { one: Some(entry), reads: None }
        } else if self.reads.is_empty() {
            // What most uses find: the first after a write, or after the allocation.
            if access.writes() {
                return Displaced { one: self.last_write.replace(entry), reads: None };
            }
            self.reads.push(entry);
            Displaced { one: None, reads: None }
        } else if access.writes() {
            self.commit_write(entry)
        } else {
            self.commit_read(entry)
        }
    }

    /// Forgets the entries for which `keep` answers `false`: the caller knows that they are done.
    pub fn retain(&mut self, mut keep: impl FnMut(&Entry<E>) -> bool) {
        self.reads.retain(|read| keep(read));
        self.last_write.take_if(|write| !keep(write));
    }

    /// Forgets everything, and answers it. Keeps its memory on the host heap, for the next block.
    pub fn clear(&mut self) -> Displaced<'_, E> {
        let write = self.last_write.take();
        self.displace(write, 0)
    }

    /// Forgets everything, and answers what [`free_waits`](Self::free_waits) did.
    pub fn take_free_waits(&mut self) -> Displaced<'_, E> {
        let write = self.last_write.take();
        let write = write.filter(|_| self.reads.is_empty());
        self.displace(write, 0)
    }

    /// All entries: reads first, then the last write.
    pub fn entries(&self) -> impl Iterator<Item = &Entry<E>> {
        self.reads.iter().chain(&self.last_write)
    }

    fn commit_read(&mut self, entry: Entry<E>) -> Displaced<'_, E> {
        let mine = self.reads.iter_mut().find(|read| read.stream == entry.stream);
        let displaced = match mine {
            Some(read) if read.stands_for(&entry) => Some(entry),
            Some(read) => Some(std::mem::replace(read, entry)),
            None => {
                self.reads.push(entry);
                None
            }
        };
        self.displace(displaced, self.reads.len())
    }

    fn commit_write(&mut self, entry: Entry<E>) -> Displaced<'_, E> {
        // A read of the same stream that comes after this write stays, as the only one.
        let later = self
            .reads
            .iter()
            .position(|read| read.stream == entry.stream && !entry.stands_for(read));
        if let Some(index) = later {
            self.reads.swap(0, index);
        }
        let write = self.last_write.replace(entry);
        self.displace(write, usize::from(later.is_some()))
    }

    fn displace(&mut self, one: Option<Entry<E>>, keep_reads: usize) -> Displaced<'_, E> {
        let any = keep_reads < self.reads.len();
        Displaced { one, reads: any.then(|| self.reads.drain(keep_reads..)) }
    }
}

impl<E> Default for Ledger<E> {
    fn default() -> Self {
        Self::new()
    }
}

/// Entries that a ledger no longer needs, so that their events can be recycled.
///
/// They have left the ledger already, whether or not they are taken from here.
#[derive(Debug)]
#[must_use = "the events can be recycled"]
pub struct Displaced<'a, E> {
    one: Option<Entry<E>>,
    reads: Option<smallvec::Drain<'a, [Entry<E>; INLINE_READS]>>,
}

impl<E> Iterator for Displaced<'_, E> {
    type Item = Entry<E>;

    fn next(&mut self) -> Option<Entry<E>> {
        self.one.take().or_else(|| self.reads.as_mut()?.next())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let reads = self.reads.as_ref().map_or(0, ExactSizeIterator::len);
        let left = usize::from(self.one.is_some()) + reads;
        (left, Some(left))
    }
}

impl<E> ExactSizeIterator for Displaced<'_, E> {}
impl<E> FusedIterator for Displaced<'_, E> {}
