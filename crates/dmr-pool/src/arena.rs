//! The memory that one stream was the first to have: what of it is free, what is free once others
//! are done, and the segments that it came in.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dmr_core::{AllocTag, DeviceBlock, StreamId};
use dmr_streams::uses::{Carried, UseTable, Vacancy};
use dmr_streams::{Latch, Latched};

use crate::heap::{ChunkId, Heap, Taken, UNIT, smallest_of_its_list};
use crate::pages::Range;

/// An arena. Its lock is never held across a driver call, and threads of other streams take it
/// only when their own arena has no room.
///
/// Its own stream may use whatever is free in its heap without waiting: that is what *free* means
/// there. Another stream may use it after what was submitted to the arena's stream when it became
/// free.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Arena {
    /// Its stream.
    pub(crate) home: StreamId,
    state: Latch<State>,
    hints: Hints,
}

/// What others read without the latch, on a cache line of its own: how an arena was, about, when
/// its latch was last let go.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Hints {
    /// There is a free chunk of so many units.
    largest: AtomicU32,
    /// 1 if there are chunks pending.
    pending: AtomicU32,
    /// Bytes of blocks that are handed out from it, to one part of 2 to the power of `exactness`.
    live: AtomicU64,
    exactness: u32,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) heap: Heap,
    /// Segments that serve one block at a time and that are free, by units.
    pub(crate) apart: BTreeMap<u32, Vec<ChunkId>>,
    /// Another one may be the largest of those.
    apart_changed: bool,
    /// Freed, oldest first; the arena's stream is not after all of it yet.
    pub(crate) pending: VecDeque<Pending>,
    /// Units in `pending`.
    pub(crate) pending_units: u64,
    /// Added to `pending` since the driver was last asked.
    pub(crate) unasked: usize,
    pub(crate) segments: Vec<Segment>,
    /// Addresses that pages are mapped into.
    pub(crate) ranges: Vec<Range>,
    pub(crate) counts: Counts,
    /// By chunk.
    seats: Vec<Seat>,
}

/// What is known of a chunk's blocks, one after the other.
#[derive(Debug)]
struct Seat {
    /// The slot of the use table for the next one; `None` while one is there.
    vacancy: Option<Vacancy>,
    /// Who asked for the last one.
    tag: AllocTag,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) units: u32,
    /// As the caller asked.
    pub(crate) bytes: u64,
    /// A segment of its own.
    pub(crate) is_apart: bool,
}

impl Request {
    /// Bytes that it takes from the pool.
    pub(crate) fn needed(&self) -> u64 {
        u64::from(self.units) * UNIT
    }
}

/// A chunk that was freed, and what it still depends on.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) chunk: ChunkId,
    pub(crate) after: Carried,
}

/// Memory from upstream.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) block: DeviceBlock,
    /// Its first chunk.
    pub(crate) first: ChunkId,
    /// It serves one block at a time.
    pub(crate) is_apart: bool,
}

/// Bytes as asked for; none of these ever decreases.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// How many blocks were handed out.
    pub(crate) blocks: u64,
    pub(crate) allocated: u64,
    /// Given back by the owner.
    pub(crate) returned: u64,
    /// In the pool again.
    pub(crate) freed: u64,
}

/// How many chunks one question is asked for, and how many younger ones are left alone meanwhile:
/// their users have had no time.
const BATCH: (usize, usize) = (16, 16);
/// The same while what is pending is little memory: questions are dear, and so are many events in
/// turn.
const BATCH_OF_SMALL: (usize, usize) = (64, 8);
/// Units that are little memory: 16 MiB.
const LITTLE: u64 = (16 << 20) / UNIT;
/// How many chunks become free with each that is added to those pending: more than one, so that
/// they never gather.
const AT_ONCE: usize = 2;

impl Arena {
    /// Others learn of bytes that are live to one part of 2 to the power of `exactness`.
    pub(crate) fn new(home: StreamId, exactness: u32) -> Self {
        let hints = Hints { exactness, ..Hints::default() };
        Self { home, state: Latch::default(), hints }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked { state: self.state.lock(), hints: &self.hints }
    }

    /// A locked arena, unless another thread has it.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        Some(Locked { state: self.state.try_lock()?, hints: &self.hints })
    }

    /// What its pending chunks depend on.
    pub(crate) fn pending(&self) -> Vec<Carried> {
        self.lock().pending.iter().map(|pending| pending.after.clone()).collect()
    }

    /// Whether it may have a chunk for a request of so many units.
    #[inline]
    pub(crate) fn may_have(&self, units: u32) -> bool {
        self.hints.largest.load(Ordering::Relaxed) >= smallest_of_its_list(units)
            || self.hints.pending.load(Ordering::Relaxed) > 0
    }

    /// Bytes of blocks that are handed out from it.
    pub(crate) fn live(&self) -> u64 {
        self.hints.live.load(Ordering::Relaxed)
    }
}

/// An arena's state. Tells what is largest when it is let go.
pub(crate) struct Locked<'a> {
    state: Latched<'a, State>,
    hints: &'a Hints,
}

impl Drop for Locked<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let state = &mut *self.state;
        let live = state.counts.allocated - state.counts.returned;
        let told = self.hints.live.load(Ordering::Relaxed);
        if live.abs_diff(told) > told >> self.hints.exactness {
            self.hints.live.store(live, Ordering::Relaxed);
        }
        tell(&self.hints.pending, u32::from(!state.pending.is_empty()));
        // Most calls change nothing here: they are served by what is kept for requests of their
        // size.
        if state.heap.take_changed() | std::mem::take(&mut state.apart_changed) {
            self.tell_largest();
        }
    }
}

impl Locked<'_> {
    #[inline(never)]
    fn tell_largest(&self) {
        let largest = self.state.heap.largest().max(self.state.largest_apart());
        tell(&self.hints.largest, largest);
    }
}

/// A hint is written only when it changes: others read it, and then its cache line is theirs, too.
#[inline]
fn tell(hint: &AtomicU32, now: u32) {
    if hint.load(Ordering::Relaxed) != now {
        hint.store(now, Ordering::Relaxed);
    }
}

impl std::ops::Deref for Locked<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        &self.state
    }
}

impl std::ops::DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl State {
    /// The slot that a chunk's last block has left, if it had one. The next one is asked for by
    /// `tag`.
    #[inline(always)]
    pub(crate) fn vacancy(&mut self, chunk: ChunkId, tag: AllocTag) -> Option<Vacancy> {
        let seat = self.seats.get_mut(chunk.get() as usize)?;
        seat.tag = tag;
        seat.vacancy.take()
    }

    /// Keeps the slot for the chunk's next block. Chunks that are put together and cut again have
    /// the same names, and so do their slots.
    #[inline(always)]
    pub(crate) fn keep_vacancy(&mut self, chunk: ChunkId, vacancy: Vacancy) {
        if let Some(seat) = self.seats.get_mut(chunk.get() as usize) {
            seat.vacancy = Some(vacancy);
        }
    }

    /// Makes room for what is known of a chunk's blocks.
    pub(crate) fn add_seat(&mut self, chunk: ChunkId, tag: AllocTag) {
        let at = chunk.get() as usize;
        if at >= self.seats.len() {
            let empty = || Seat { vacancy: None, tag: AllocTag::UNTAGGED };
            self.seats.resize_with((at + 1).next_power_of_two(), empty);
        }
        self.seats[at].tag = tag;
    }

    /// Who asked for the chunk's last block.
    pub(crate) fn tag(&self, chunk: ChunkId) -> AllocTag {
        self.seats.get(chunk.get() as usize).map_or(AllocTag::UNTAGGED, |seat| seat.tag)
    }

    /// All slots that are kept.
    pub(crate) fn take_vacancies(&mut self) -> impl Iterator<Item = Vacancy> {
        std::mem::take(&mut self.seats).into_iter().filter_map(|seat| seat.vacancy)
    }

    /// A free chunk, and what is counted for it.
    #[inline(always)]
    pub(crate) fn take(&mut self, request: Request) -> Option<Taken> {
        let kept = if request.is_apart { None } else { self.heap.take_kept(request.units) };
        let taken = match kept {
            Some(taken) => taken,
            None => self.heap_take(request)?,
        };
        self.counts.blocks += 1;
        self.counts.allocated += request.bytes;
        Some(taken)
    }

    /// The same, and nothing is counted.
    #[inline(never)]
    pub(crate) fn heap_take(&mut self, request: Request) -> Option<Taken> {
        let units = request.units;
        if request.is_apart { self.take_apart(units) } else { self.heap.take(units) }
    }

    /// The smallest free segment that is not much too large.
    fn take_apart(&mut self, units: u32) -> Option<Taken> {
        let (&size, ids) = self.apart.range_mut(units..=units.saturating_add(units / 8)).next()?;
        let id = ids.pop()?;
        if ids.is_empty() {
            self.apart.remove(&size);
            self.apart_changed = true;
        }
        Some(self.heap.taken(id))
    }

    /// Makes a chunk free.
    #[inline(always)]
    pub(crate) fn release(&mut self, id: ChunkId, since: u64) {
        if !self.heap.keep(id, since) {
            self.release_slowly(id, since);
        }
    }

    #[inline(never)]
    fn release_slowly(&mut self, id: ChunkId, since: u64) {
        if self.heap.is_apart(id) {
            self.heap.set_since(id, since);
            self.apart.entry(self.heap.range(id).1).or_default().push(id);
            self.apart_changed = true;
        } else {
            self.heap.merge(id, since);
        }
    }

    /// Takes a segment out that is free as a whole, of those that are such.
    pub(crate) fn remove_segment(&mut self, such: impl Fn(&Segment) -> bool) -> Option<Segment> {
        let Self { heap, apart, segments, .. } = self;
        let leaves = |segment: &Segment| {
            if !such(segment) {
                return false;
            }
            if !segment.is_apart {
                return heap.remove_segment(segment.first);
            }
            let (_, units) = heap.range(segment.first);
            let Some(ids) = apart.get_mut(&units) else { return false };
            let Some(at) = ids.iter().position(|&id| id == segment.first) else { return false };
            ids.swap_remove(at);
            if ids.is_empty() {
                apart.remove(&units);
            }
            heap.remove_apart(segment.first);
            true
        };
        let at = segments.iter().position(leaves)?;
        let segment = segments.swap_remove(at);
        self.apart_changed = true;
        Some(segment)
    }

    fn largest_apart(&self) -> u32 {
        self.apart.last_key_value().map_or(0, |(&units, _)| units)
    }

    /// Keeps a chunk until the arena's stream is after all of `after`. Other streams may use it
    /// after that and after what the arena's stream had been given when the chunk became free.
    pub(crate) fn push(&mut self, chunk: ChunkId, after: Carried, since: u64) {
        self.heap.set_since(chunk, since);
        self.pending_units += u64::from(self.heap.range(chunk).1);
        self.pending.push_back(Pending { chunk, after });
        self.unasked += 1;
    }

    /// Makes the oldest chunks free, up to a few, as long as `stream`, whose arena this is, is
    /// after all that they depend on.
    #[inline]
    pub(crate) fn settle_some(&mut self, stream: StreamId, uses: UseTable<'_>) {
        for _ in 0..AT_ONCE {
            match self.pending.front() {
                Some(oldest) if uses.is_after(stream, &oldest.after) => {}
                _ => return,
            }
            if let Some(oldest) = self.pending.pop_front() {
                self.free_pending(&oldest, stream, uses);
            }
        }
    }

    /// What the driver is to be asked, if it is time: the youngest chunk that has had time, whose
    /// answer counts for all earlier uses of its streams; and the oldest.
    #[inline]
    pub(crate) fn question(&mut self) -> Option<[Carried; 2]> {
        let is_little = self.pending_units <= LITTLE;
        let (batch, young) = if is_little { BATCH_OF_SMALL } else { BATCH };
        if self.unasked < batch || self.pending.len() < batch + young {
            return None;
        }
        self.unasked = 0;
        let due = self.pending.len() - young - 1;
        Some([self.pending.get(due)?.after.clone(), self.pending.front()?.after.clone()])
    }

    /// Makes all chunks free for which that holds; answers whether there were any.
    pub(crate) fn settle_all(&mut self, stream: StreamId, uses: UseTable<'_>) -> bool {
        let before = self.pending.len();
        for _ in 0..before {
            let Some(oldest) = self.pending.pop_front() else { break };
            if uses.is_after(stream, &oldest.after) {
                self.free_pending(&oldest, stream, uses);
            } else {
                self.pending.push_back(oldest);
            }
        }
        self.pending.len() < before
    }

    /// Takes one of the pending chunks that is large enough, of those for which `such` holds: what
    /// it depends on, and since when it is free. Nothing is counted.
    pub(crate) fn take_pending(
        &mut self,
        request: Request,
        such: impl Fn(&Carried, u64) -> bool,
    ) -> Option<Pending> {
        let Request { units, is_apart, .. } = request;
        let fits = |pending: &Pending| {
            let have = self.heap.range(pending.chunk).1;
            is_apart == self.heap.is_apart(pending.chunk)
                && have >= units
                && have - units <= units / 8
                && such(&pending.after, self.heap.taken(pending.chunk).since)
        };
        let at = self.pending.iter().position(fits)?;
        self.remove_pending(at)
    }

    /// Takes one of the pending chunks.
    pub(crate) fn remove_pending(&mut self, at: usize) -> Option<Pending> {
        let pending = self.pending.remove(at)?;
        self.pending_units -= u64::from(self.heap.range(pending.chunk).1);
        Some(pending)
    }

    fn free_pending(&mut self, pending: &Pending, stream: StreamId, uses: UseTable<'_>) {
        let Taken { id, units, since, .. } = self.heap.taken(pending.chunk);
        self.pending_units -= u64::from(units);
        // What others are done with, nobody has to come after.
        let is_done = uses.is_known_done(&pending.after);
        self.release(id, if is_done { since } else { uses.submitted(stream) });
    }
}
