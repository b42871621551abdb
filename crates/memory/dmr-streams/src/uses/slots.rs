//! The slots of the use table, found by index.
//!
//! One word of a slot is its lock, and says which block is in it. So one exchange finds out that a
//! block is in its slot, is not retired and is not locked, and locks it; and a stale id spins on
//! nothing.
//!
//! A launch that finishes touches no slot. The window that it has opened stays, with the number of
//! the launch, and the next thread that locks the slot *settles* it: closes the windows of launches
//! that are over, and records their uses. [`Launches`] says which are over.
//!
//! Makes no driver call, so that it can be model-checked.

use crossbeam_utils::CachePadded;
use dmr_core::ledger::UseId;
use dmr_core::{
    BlockId, BlockSlot, BlockUse, ByteRange, Generation, ResourceError, ResourceResult, SpinLock,
    StreamId, StreamPoolId, UseToken, UseTokens,
};

use super::FreeSlot;
use super::closed::OwnerNumber;
use super::slot_state::{
    AWAITED, LAST, Launches, OpenWindow, SlotState, USES, WINDOWS, WindowEnd, launch_of,
};
use super::use_slot::{LockedSlot, UseSlot};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

/// The number of slots of a chunk. They are made at once, in some 30 microseconds, and live as long
/// as the table. (Models have few slots, because their threads have small stacks.)
const CHUNK: usize = if cfg!(loom) { BATCH } else { 256 };
/// The number of chunks of the table: enough for [`MOST`] slots.
const CHUNKS: usize = MOST / CHUNK;
/// The most slots.
pub(super) const MOST: usize = if cfg!(loom) { 1 << 10 } else { 1 << 26 };
/// The number of slots that a stream is given at once, so that slots of two streams are not
/// neighbours.
pub(super) const BATCH: usize = 64;

pub(crate) struct Slots {
    /// The stream pool of the table.
    pub(super) pool: StreamPoolId,
    /// Null where no chunk was made. The system provides this memory when it is touched: 2 MiB at
    /// most.
    chunks: Box<[AtomicPtr<Chunk>; CHUNKS]>,
    /// Slots below this number have been given to a stream.
    pub(super) given: AtomicUsize,
    /// By home stream: slots without a block.
    pub(super) free: Box<[CachePadded<SpinLock<Vec<FreeSlot>>>]>,
}

type Chunk = [CachePadded<UseSlot>; CHUNK];

/// The result of closing the windows of tokens of one block.
pub(crate) struct Closed<'t> {
    /// The tokens behind those of the block.
    pub(crate) behind: &'t [UseToken],
    /// A token has no window.
    pub(crate) any_stale: bool,
    /// The owner of the block, if it was retired and its last window is closed now.
    pub(crate) retired: Option<OwnerNumber>,
}

/// Launches of one stream that are over.
#[derive(Clone, Copy)]
pub(crate) struct EndedLaunches {
    /// All words from this one to the last are launches that are over, and of this stream.
    first: u64,
    last: u64,
}

impl EndedLaunches {
    /// Returns the launches up to number `last` of the stream in `slot`; none if that is 0.
    #[inline(always)]
    pub(crate) fn new(slot: usize, last: u64) -> Self {
        Self { first: UseId::from_parts(slot, 1).get(), last: UseId::from_parts(slot, last).get() }
    }

    /// Returns whether this launch is one of them.
    #[inline(always)]
    fn have(&self, launch: UseId) -> bool {
        (self.first..=self.last).contains(&launch.get())
    }
}

/// The uses of a launch whose windows were opened on the regular path.
pub(crate) struct Opened {
    /// The number of uses whose windows are open.
    pub(crate) windows: usize,
    /// The use that the launch must wait for.
    pub(crate) need: Option<UseId>,
}

impl Slots {
    /// Makes the table of a stream pool whose streams are in slots below `streams`.
    pub(crate) fn new(pool: StreamPoolId, streams: usize) -> Self {
        Self {
            pool,
            chunks: null_chunks(),
            given: AtomicUsize::new(0),
            free: (0..streams).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Returns whether the ledger of a block has this use.
    pub(crate) fn has_use(&self, block: BlockId, used: UseId) -> bool {
        self.of(block).is_some_and(|slot| slot.entries().any(|entry| entry == used))
    }

    /// Returns the payload of a live block of this owner.
    pub(crate) fn payload(&self, block: BlockId, owner: OwnerNumber) -> Option<u64> {
        let slot = self.of_owner(block, owner)?;
        (!slot.is_retired()).then_some(slot.occupant.payload)
    }

    /// Opens the windows of uses on the regular path: of whole blocks that have no open window, as
    /// far as the uses to wait for are of one stream. Stops at the first use that is not of this
    /// kind, or whose slot is locked. Adds the windows to `tokens`.
    #[inline]
    pub(crate) fn open_regular(
        &self,
        uses: &[BlockUse],
        tokens: &mut UseTokens,
        ended: EndedLaunches,
        launches: &impl Launches,
    ) -> Opened {
        let stream = tokens.stream();
        let launch = launch_of(tokens);
        let mut opened = Opened { windows: 0, need: None };
        for used in uses {
            let generation = used.block.generation().get();
            let Some(slot) = self.entry(used.block.slot().to_bits()) else { break };
            let Some(mut slot) = slot.try_lock_live(generation) else { break };
            let is_over = |launch| ended.have(launch) || launches.is_over(launch);
            if !used.bytes.is_whole() || !slot.settle_last(is_over) {
                break;
            }
            let is_own = slot.marks & USES == 0 && slot.ledger.is_written_on(stream.slot());
            if !is_own && !add_need(&slot, used, stream, &mut opened.need, launches) {
                break;
            }
            slot.open_last(OpenWindow::new(stream, launch, used.access));
            drop(slot);
            // SAFETY: the window was opened just now, and this is its only token.
            unsafe { tokens.push(used.block, used.access, 0) };
            opened.windows += 1;
        }
        opened
    }

    /// Opens the window of the first use, and of the uses behind it that are of the same block if
    /// parts of that are used. Adds the windows to `tokens`, and calls `need` with each use that
    /// the new ones must wait for. Returns the uses behind these. On an error, windows that were
    /// opened are in `tokens`.
    pub(crate) fn open<'u>(
        &self,
        uses: &'u [BlockUse],
        tokens: &mut UseTokens,
        launches: &impl Launches,
        mut need: impl FnMut(UseId),
    ) -> ResourceResult<&'u [BlockUse]> {
        let Some((used, behind)) = uses.split_first() else { return Ok(uses) };
        let stream = tokens.stream();
        let slot = self.of(used.block);
        let Some(mut slot) = slot.filter(|slot| !slot.is_retired()) else {
            return Err(Self::no_window(used.block, stream));
        };
        slot.settle(launches);
        if slot.has_parts() || !used.bytes.is_whole() {
            let of_block = uses.iter().take_while(|it| it.block == used.block).count();
            let (of_block, behind) = uses.split_at(of_block);
            let waits = slot.open_parts(of_block, tokens)?;
            drop(slot);
            waits.as_slice().iter().for_each(|wait| need(wait.used));
            return Ok(behind);
        }
        slot.refuse_conflict(used, stream)?;
        slot.ledger.visit_waits(stream.slot(), used.access, need);
        slot.open_whole(OpenWindow::new(stream, launch_of(tokens), used.access));
        drop(slot);
        // SAFETY: the window was opened just now, and this is its only token.
        unsafe { tokens.push(used.block, used.access, 0) };
        Ok(behind)
    }

    /// Returns the error for a block that is not in its slot, or is retired.
    #[cold]
    fn no_window(block: BlockId, stream: StreamId) -> ResourceError {
        match block.slot().index() {
            None => ResourceError::not_tracked(stream),
            Some(_) => ResourceError::use_after_free(block.generation()),
        }
    }

    /// Closes a window of this launch for the first token, and for each token behind it that is of
    /// the same block. A token without a window changes nothing.
    pub(crate) fn close<'t>(
        &self,
        tokens: &'t [UseToken],
        launch: UseId,
        end: WindowEnd,
        launches: &impl Launches,
    ) -> Closed<'t> {
        let Some(token) = tokens.first() else {
            return Closed { behind: &[], any_stale: false, retired: None };
        };
        let is_same =
            |it: &&UseToken| (it.slot(), it.generation()) == (token.slot(), token.generation());
        let of_block = tokens.iter().take_while(is_same).count();
        let (of_block, behind) = tokens.split_at(of_block);
        let Some(mut slot) = self.of_generation(token.slot(), token.generation()) else {
            return Closed { behind, any_stale: true, retired: None };
        };
        let closed = slot.close(of_block.len(), launch, end, launches);
        slot.settle(launches);
        let is_last = slot.marks & (AWAITED | WINDOWS | LAST) == AWAITED;
        if is_last {
            slot.marks &= !AWAITED;
        }
        let retired = if is_last { slot.occupant.owner } else { None };
        Closed { behind, any_stale: closed < of_block.len(), retired }
    }

    /// Makes the allocation of a block as late as `home`, and removes the uses on its home stream.
    /// Returns `false` if the block is not in the table, or another stream has used it, or a window
    /// is open.
    pub(crate) fn restart(&self, block: BlockId, home: UseId, launches: &impl Launches) -> bool {
        let Some(mut slot) = self.of(block) else { return false };
        slot.settle(launches);
        let is_fresh = !slot.is_retired()
            && slot.windows.is_empty()
            && slot.entries().all(|entry| home.covers(entry));
        if is_fresh {
            slot.restart(home);
        }
        is_fresh
    }

    /// Calls `need` with each use of these bytes that must be done before the host writes them.
    /// Returns `false` if a window on one of them is open.
    pub(crate) fn visit_host_waits(
        &self,
        block: BlockId,
        bytes: ByteRange,
        launches: &impl Launches,
        mut need: impl FnMut(UseId),
    ) -> ResourceResult<bool> {
        self.with(block, launches, |slot| {
            slot.visit_host_waits(bytes, &mut need);
            (0..slot.windows.len()).all(|at| !slot.bytes_of_window(at).overlaps(bytes))
        })
    }

    pub(crate) fn is_retired(&self, block: BlockId) -> bool {
        self.of(block).is_some_and(|slot| slot.is_retired())
    }

    pub(crate) fn has_open_window(&self, block: BlockId, launches: &impl Launches) -> bool {
        self.with(block, launches, |slot| !slot.windows.is_empty()).unwrap_or(false)
    }

    /// Returns whether a window of another stream on the block conflicts with this use.
    pub(crate) fn has_conflict(
        &self,
        used: &BlockUse,
        stream: StreamId,
        launches: &impl Launches,
    ) -> Option<bool> {
        self.with(used.block, launches, |slot| slot.conflict(used, stream).is_some()).ok()
    }

    /// Returns the number of uses in all ledgers, without allocations. A use counts once for each
    /// range of bytes that a ledger has.
    pub(crate) fn count_uses(&self, launches: &impl Launches) -> usize {
        // An allocation has an odd number, or none.
        let is_use = |used: &UseId| used.seq() > 0 && used.seq().is_multiple_of(2);
        let of_slot = |mut slot: LockedSlot<'_>| {
            slot.settle(launches);
            slot.entries().filter(is_use).count()
        };
        self.occupied().map(of_slot).sum()
    }

    /// Returns the number of the generation of a block that has a window open on this stream.
    /// Looks at every slot.
    pub(crate) fn block_with_window_on(
        &self,
        stream: StreamId,
        launches: &impl Launches,
    ) -> Option<u64> {
        let is_on = |window: &OpenWindow| window.stream.slot() == stream.slot();
        let has_window = |slot: &mut LockedSlot<'_>| {
            slot.settle(launches);
            slot.windows.iter().any(is_on)
        };
        let mut occupied = self.occupied();
        occupied.find_map(|mut slot| has_window(&mut slot).then(|| slot.generation()))
    }

    /// Locks the slots that have a block, one after the other.
    fn occupied(&self) -> impl Iterator<Item = LockedSlot<'_>> {
        self.chunks().flat_map(|chunk| chunk.iter()).filter_map(|slot| slot.lock_occupied())
    }

    /// Returns the number of slots that streams were given, free ones and others.
    pub(crate) fn given(&self) -> usize {
        self.given.load(Ordering::Relaxed)
    }

    /// Calls `look` on the block's slot, settled, if that is still the block's.
    #[inline]
    fn with<T>(
        &self,
        block: BlockId,
        launches: &impl Launches,
        look: impl FnOnce(&mut SlotState) -> T,
    ) -> ResourceResult<T> {
        match self.of(block) {
            Some(mut slot) => {
                slot.settle(launches);
                Ok(look(&mut slot))
            }
            None => Err(ResourceError::use_after_free(block.generation())),
        }
    }

    /// Locks the block's slot, if that is still the block's.
    #[inline]
    pub(super) fn of(&self, block: BlockId) -> Option<LockedSlot<'_>> {
        self.of_generation(block.slot(), block.generation())
    }

    /// Locks the slot with this index, if the block of this generation is in it.
    #[inline]
    fn of_generation(&self, slot: BlockSlot, generation: Generation) -> Option<LockedSlot<'_>> {
        self.entry(slot.to_bits())?.lock_of(generation.get())
    }

    /// Locks the slot of a block, if that is still the block's, and this owner's.
    #[inline]
    pub(super) fn of_owner(&self, block: BlockId, owner: OwnerNumber) -> Option<LockedSlot<'_>> {
        self.of(block).filter(|slot| slot.occupant.owner == Some(owner))
    }

    /// Returns the slot with this index, of which the bits count that an index of the table has: a
    /// mark beside them changes nothing, and a block that is not in the table has another
    /// generation than the slot found.
    #[inline(always)]
    pub(super) fn entry(&self, index: u32) -> Option<&UseSlot> {
        let index = index as usize % MOST;
        let chunk = self.chunks[index / CHUNK].load(Ordering::Acquire);
        // SAFETY: null, or made by `make_chunk` and freed with the table.
        Some(&unsafe { chunk.as_ref() }?[index % CHUNK])
    }

    /// Returns the chunks that were made.
    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        let made = &self.chunks[..self.given().div_ceil(CHUNK)];
        // SAFETY: as in `entry`.
        made.iter().filter_map(|chunk| unsafe { chunk.load(Ordering::Acquire).as_ref() })
    }

    /// Makes the chunk of a slot, unless it was made.
    pub(super) fn make_chunk(&self, index: usize) {
        let chunk = &self.chunks[index / CHUNK];
        if !chunk.load(Ordering::Acquire).is_null() {
            return;
        }
        let first = index - index % CHUNK;
        let slots = (first..first + CHUNK).map(|index| CachePadded::new(UseSlot::empty(index)));
        let made = Box::into_raw(slots.collect::<Box<[_]>>()).cast::<Chunk>();
        let null = std::ptr::null_mut();
        if chunk.compare_exchange(null, made, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: made just now, and not published.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for chunk in &self.chunks[..self.given().div_ceil(CHUNK)] {
            let chunk = chunk.load(Ordering::Acquire);
            if !chunk.is_null() {
                // SAFETY: made by `make_chunk`, and nothing else frees it.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }
}

/// Returns the table without chunks.
#[cfg(not(loom))]
fn null_chunks() -> Box<[AtomicPtr<Chunk>; CHUNKS]> {
    // The allocator of the system has this many zeros without writing them.
    let zeros = Box::into_raw(vec![0_usize; CHUNKS].into_boxed_slice());
    // SAFETY: the length is `CHUNKS`. An atomic pointer has the size and the alignment of a word,
    // and is null if that is 0.
    unsafe { Box::from_raw(zeros.cast()) }
}

#[cfg(loom)]
fn null_chunks() -> Box<[AtomicPtr<Chunk>; CHUNKS]> {
    Box::new(std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())))
}

/// Adds the use that `stream` must wait for before it uses a block, if there is one. Returns
/// `false` if there are uses of two streams to wait for.
#[inline(never)]
fn add_need(
    slot: &SlotState,
    used: &BlockUse,
    stream: StreamId,
    need: &mut Option<UseId>,
    launches: &impl Launches,
) -> bool {
    let mut latest = *need;
    let mut is_of_one_stream = true;
    slot.ledger.visit_waits(stream.slot(), used.access, |earlier| {
        if launches.holds_up(stream.slot(), earlier) {
            is_of_one_stream &= latest.is_none_or(|known| known.slot() == earlier.slot());
            latest = latest.max(Some(earlier));
        }
    });
    if is_of_one_stream {
        *need = latest;
    }
    is_of_one_stream
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slots").field("given", &self.given).finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
#[path = "slots_loom.rs"]
mod loom_tests;

#[cfg(all(test, not(loom)))]
#[path = "slots_tests.rs"]
mod tests;
