//! The counters of a resource: overall, by tag, by stream, and of each open scope.

use std::collections::HashMap;
use std::{iter, mem};

use dmr_core::process::LeakedInChild;
use dmr_core::{AllocTag, StreamId};
use rustc_hash::FxHashMap;

use super::report::{Counter, Statistics, StreamStatistics, TagStatistics};
use super::scope::OpenScopes;
use crate::lease::{ALL, Cells, Lease, Room};
use crate::sync::SpinLockGuard;

/// The counters of a resource.
///
/// A call counts in the cell of its thread, with the leases that the cell holds of the counters
/// overall, of its tag and of its stream. Below a peak no peak can rise, so the room that is leased
/// is the peak less what is current.
#[derive(Debug, Default)]
pub(super) struct Counts(LeakedInChild<Cells<Totals, Cell>>);

impl Default for Cells<Totals, Cell> {
    fn default() -> Self {
        Self::for_all_threads(Totals::default())
    }
}

/// The effect of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// Allocated a block of this many bytes.
    Allocated(u64),
    /// Grew a block by this many bytes.
    Grown(u64),
    /// Freed a block of this many bytes.
    Freed(u64),
    /// Failed to allocate a block.
    Failed,
}

impl Event {
    /// Returns what it adds to the current bytes and blocks.
    const fn amounts(self) -> Amounts {
        match self {
            Self::Allocated(bytes) => Amounts { bytes: bytes as i64, blocks: 1 },
            Self::Grown(bytes) => Amounts { bytes: bytes as i64, blocks: 0 },
            Self::Freed(bytes) => Amounts { bytes: (bytes as i64).wrapping_neg(), blocks: -1 },
            Self::Failed => Amounts { bytes: 0, blocks: 0 },
        }
    }
}

/// Bytes and blocks that are added, or removed if they are negative.
#[derive(Clone, Copy, Debug)]
struct Amounts {
    bytes: i64,
    blocks: i64,
}

/// A call that counts. Failures have no stream: the stream itself may be the reason.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) event: Event,
    pub(super) tag: AllocTag,
    pub(super) stream: Option<StreamId>,
}

impl Counts {
    /// Counts a call. Nothing is counted in a forked child, where a thread of the parent may hold a
    /// lock for ever.
    #[inline]
    pub(super) fn count(&self, call: Call) {
        if let Some(cells) = self.0.current()
            && !cells.own().count(call)
        {
            count_slowly(cells, call);
        }
    }

    /// Locks the cell of the calling thread; `None` in a forked child.
    pub(super) fn own(&self) -> Option<SpinLockGuard<'_, Cell>> {
        self.0.current().map(Cells::own)
    }

    /// Sets each peak to what is current.
    pub(super) fn reset_peaks(&self) {
        let Some(all) = self.0.current() else { return };
        let mut totals = all.shared();
        let mut cells = all.all();
        for (which, peaks) in totals.iter_mut() {
            peaks.bytes.reset(|cell| cells[cell].counters(which).bytes.close());
            peaks.blocks.reset(|cell| cells[cell].counters(which).blocks.close());
        }
    }

    /// Copies the counters of one instant, unsorted. All other calls wait.
    pub(super) fn statistics(&self) -> Statistics {
        let Some(all) = self.0.current() else { return Statistics::default() };
        let totals = all.shared();
        let cells = all.all();
        let overall = totals.overall.sum(cells.iter().map(|cell| &cell.overall));
        let by_tag = totals.by_name.iter().map(|(&tag, &index)| {
            let of_tag = cells.iter().filter_map(|cell| cell.by_tag.get(index));
            let Sums { bytes, allocations, frees, failures } = totals.by_tag[index].sum(of_tag);
            TagStatistics { tag, bytes, allocations, frees, failures }
        });
        let by_stream = totals.by_stream.iter().enumerate().map(|(slot, peaks)| {
            let of_stream = cells.iter().filter_map(|cell| cell.by_stream.get(slot));
            let Sums { bytes, allocations, frees, .. } = peaks.sum(of_stream);
            StreamStatistics { slot, bytes, allocations, frees }
        });
        let Sums { bytes, allocations, frees, failures } = overall;
        let by_stream = by_stream.filter(StreamStatistics::is_used).collect();
        Statistics { bytes, allocations, frees, failures, by_tag: by_tag.collect(), by_stream }
    }
}

/// Counts a call under the shared lock, where the leases of the cell do not suffice or a peak
/// rises, and leases room to the cell while no peak rises.
#[cold]
#[inline(never)]
fn count_slowly(cells: &Cells<Totals, Cell>, call: Call) {
    let index = cells.own_index();
    let amounts = call.event.amounts();
    let mut totals = cells.shared();
    let tag = totals.tag(call.tag);
    let stream = call.stream.map(|stream| Which::Stream(stream.slot()));
    let counters = [Some(Which::Overall), Some(Which::Tag(tag)), stream];
    let mut is_calm = true;
    for which in counters.into_iter().flatten() {
        let Peaks { bytes, blocks, total } = totals.get_or_insert(which);
        total.add(call.event);
        bytes.change(amounts.bytes, index, |cell| cells.cell(cell).counters(which).bytes.close());
        blocks
            .change(amounts.blocks, index, |cell| cells.cell(cell).counters(which).blocks.close());
        is_calm &= bytes.room.is_calm() && blocks.room.is_calm();
    }
    // One counter without a lease would bring every call here.
    if is_calm {
        let mut cell = cells.cell(index);
        cell.by_address.insert(NameAddress::of(call.tag), tag);
        for which in counters.into_iter().flatten() {
            let Peaks { bytes, blocks, .. } = totals.get_or_insert(which);
            let leases = cell.counters(which);
            bytes.room.lease(amounts.bytes, index, &mut leases.bytes);
            blocks.room.lease(amounts.blocks, index, &mut leases.blocks);
        }
    }
}

/// Counters of a resource.
#[derive(Clone, Copy, Debug)]
enum Which {
    Overall,
    /// Of a tag, by its index.
    Tag(usize),
    /// Of a stream, by its slot.
    Stream(usize),
}

/// The counters of the threads of one cell, and the leases of the cell.
#[derive(Debug, Default)]
pub(super) struct Cell {
    overall: CellCounters,
    /// Indexed as [`Totals::by_tag`].
    by_tag: Vec<CellCounters>,
    /// Indices of the tags that the cell has leases for, as [`Totals::by_address`].
    by_address: FxHashMap<NameAddress, usize>,
    /// Indexed by stream slot.
    by_stream: Vec<CellCounters>,
    /// The scopes of the threads of the cell.
    pub(super) scopes: OpenScopes,
}

impl Cell {
    /// Counts a call in the scopes of its thread, and in all other counters if all leases suffice.
    /// Returns `false` if they do not.
    #[inline]
    fn count(&mut self, call: Call) -> bool {
        let Call { event, tag, stream } = call;
        self.scopes.count(event);
        let amounts = event.amounts();
        let Some(overall) = self.overall.changed(amounts) else { return false };
        let Some(&tag) = self.by_address.get(&NameAddress::of(tag)) else { return false };
        let of_tag = &mut self.by_tag[tag];
        let Some(tag) = of_tag.changed(amounts) else { return false };
        if let Some(stream) = stream {
            let Some(of_stream) = self.by_stream.get_mut(stream.slot()) else { return false };
            let Some(stream) = of_stream.changed(amounts) else { return false };
            of_stream.set(stream, event);
        }
        of_tag.set(tag, event);
        self.overall.set(overall, event);
        true
    }

    fn counters(&mut self, which: Which) -> &mut CellCounters {
        let (all, index) = match which {
            Which::Overall => return &mut self.overall,
            Which::Tag(index) => (&mut self.by_tag, index),
            Which::Stream(slot) => (&mut self.by_stream, slot),
        };
        if index >= all.len() {
            all.resize(index + 1, CellCounters::default());
        }
        &mut all[index]
    }
}

/// The address and length of a tag's name. The name is `'static`, so they are always the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NameAddress {
    start: usize,
    len: usize,
}

impl NameAddress {
    #[inline]
    fn of(tag: AllocTag) -> Self {
        let name = tag.name();
        Self { start: name.as_ptr().addr(), len: name.len() }
    }
}

/// The counters of one cell: overall, of a tag or of a stream.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct CellCounters {
    bytes: Lease,
    blocks: Lease,
    total: Total,
}

/// The sums of all that was added.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    bytes: u64,
    blocks: u64,
    failures: u64,
}

impl Total {
    #[inline]
    fn add(&mut self, event: Event) {
        match event {
            Event::Allocated(bytes) => {
                self.bytes = self.bytes.wrapping_add(bytes);
                self.blocks += 1;
            }
            Event::Grown(bytes) => self.bytes = self.bytes.wrapping_add(bytes),
            Event::Freed(_) => {}
            Event::Failed => self.failures += 1,
        }
    }
}

/// Leases of bytes and blocks.
#[derive(Clone, Copy, Debug)]
struct Leases {
    bytes: Lease,
    blocks: Lease,
}

impl CellCounters {
    /// Returns the leases after a call; `None` if they do not suffice.
    #[inline]
    fn changed(&self, amounts: Amounts) -> Option<Leases> {
        let bytes = self.bytes.changed(amounts.bytes)?;
        let blocks = self.blocks.changed(amounts.blocks)?;
        Some(Leases { bytes, blocks })
    }

    #[inline]
    fn set(&mut self, leases: Leases, event: Event) {
        self.bytes = leases.bytes;
        self.blocks = leases.blocks;
        self.total.add(event);
    }
}

/// The part of the counters that all threads share.
#[derive(Debug, Default)]
struct Totals {
    overall: Peaks,
    by_tag: Vec<Peaks>,
    /// Indices into `by_tag`.
    by_name: HashMap<AllocTag, usize>,
    /// Indices by the place of the name, so that a call neither hashes nor compares a name.
    by_address: FxHashMap<NameAddress, usize>,
    /// Indexed by stream slot.
    by_stream: Vec<Peaks>,
}

impl Totals {
    /// Returns the index of a tag.
    fn tag(&mut self, tag: AllocTag) -> usize {
        let next = self.by_name.len();
        let index = || *self.by_name.entry(tag).or_insert(next);
        *self.by_address.entry(NameAddress::of(tag)).or_insert_with(index)
    }

    fn get_or_insert(&mut self, which: Which) -> &mut Peaks {
        let (all, index) = match which {
            Which::Overall => return &mut self.overall,
            Which::Tag(index) => (&mut self.by_tag, index),
            Which::Stream(slot) => (&mut self.by_stream, slot),
        };
        if index >= all.len() {
            all.resize(index + 1, Peaks::default());
        }
        &mut all[index]
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (Which, &mut Peaks)> {
        let tags = self.by_tag.iter_mut().enumerate();
        let streams = self.by_stream.iter_mut().enumerate();
        iter::once((Which::Overall, &mut self.overall))
            .chain(tags.map(|(index, peaks)| (Which::Tag(index), peaks)))
            .chain(streams.map(|(slot, peaks)| (Which::Stream(slot), peaks)))
    }
}

/// The peaks of bytes and blocks, overall, of a tag or of a stream, and what was counted under the
/// shared lock.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Peaks {
    bytes: Peak,
    blocks: Peak,
    total: Total,
}

/// A peak, and its room: the peak less what is current, less what is leased.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    peak: i64,
    room: Room,
}

impl Peak {
    /// Adds `amount` to what is current. If that exceeds the peak, it is the new one.
    fn change(&mut self, amount: i64, index: usize, close: impl FnMut(usize) -> i64) {
        if let Err(room) = self.room.change(amount, index, close) {
            self.peak = self.peak.wrapping_add(amount - room);
            self.room.add(-room);
        }
    }

    fn reset(&mut self, close: impl FnMut(usize) -> i64) {
        let current = self.peak.wrapping_sub(self.room.call_in(ALL, close));
        let before = mem::replace(&mut self.peak, current.max(0));
        self.room.add(self.peak.wrapping_sub(before));
    }

    /// Returns the counter, given the sums over all cells. It is below zero only after blocks were
    /// freed that another resource allocated: then it is 0.
    fn sum(self, leased: i64, total: u64) -> (Counter, i64) {
        let current = self.peak.wrapping_sub(self.room.left()).wrapping_sub(leased);
        let peak = self.peak.unsigned_abs();
        (Counter { current: current.max(0).unsigned_abs(), peak, total }, current)
    }
}

/// The sums over all cells.
struct Sums {
    bytes: Counter,
    allocations: Counter,
    frees: u64,
    failures: u64,
}

impl Peaks {
    fn sum<'a>(&self, cells: impl Iterator<Item = &'a CellCounters>) -> Sums {
        let mut leased = Amounts { bytes: 0, blocks: 0 };
        let mut total = self.total;
        for cell in cells {
            leased.bytes += cell.bytes.left();
            leased.blocks += cell.blocks.left();
            total.bytes = total.bytes.wrapping_add(cell.total.bytes);
            total.blocks += cell.total.blocks;
            total.failures += cell.total.failures;
        }
        let (bytes, _) = self.bytes.sum(leased.bytes, total.bytes);
        let (allocations, blocks) = self.blocks.sum(leased.blocks, total.blocks);
        // The blocks that were allocated and are not there any more.
        let frees = allocations.total.wrapping_sub(blocks as u64);
        Sums { bytes, allocations, frees, failures: total.failures }
    }
}
