//! Races of global memory within one launch: two threads access a byte without order, and one of
//! them writes it.
//!
//! For every byte it keeps the last write and two reads since. Threads of one block are ordered as
//! the caller says (barriers, warp barriers). Across blocks, and also within one, an access is
//! ordered before a later one if the block of the first executed a fence (of the whole device)
//! after it, and the block of the later one made an atomic or volatile access after that fence.
//! This orders more than the memory model of PTX does:
//!
//! - the address of the atomic access does not count, nor whether it read what the other block
//!   wrote;
//! - fence and atomic access may be of any thread of their block;
//! - a poll needs no fence behind it.
//!
//! So decoupled look-back, barriers of a grid and locks that fence what they publish are never
//! reported, at the price of missed races. What they publish without a fence is reported.
//!
//! One of the two accesses must be a plain write, and none an atomic or volatile read: flags are
//! often written plainly, and a loop around `atomicCAS` reads plainly first.
//!
//! Memory is bounded: at [`LIMIT`] bytes everything is forgotten, which can only miss races.

mod blocks;
mod records;
mod sectors;
#[cfg(test)]
mod tests;

use crate::access::AccessKind;
use blocks::Blocks;
use records::{Entry, Record, Records};
use sectors::{SECTOR, Sectors, Span};

/// The maximum number of bytes of what a launch's accesses leave behind.
const LIMIT: usize = 1 << 29;

/// An access to global memory by lanes of one warp.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GlobalAccess {
    /// The number of the block in its grid.
    pub(crate) block: u32,
    /// The number in its block of the thread of lane 0.
    pub(crate) first_thread: u32,
    /// The first byte.
    pub(crate) address: u64,
    /// The bytes of a lane.
    pub(crate) lane_bytes: u32,
    /// The first lane. Those after it access the bytes that follow.
    pub(crate) first_lane: u32,
    /// The number of lanes.
    pub(crate) lanes: u32,
    /// True if every lane accesses the same `lane_bytes` bytes instead.
    pub(crate) is_same: bool,
    pub(crate) kind: AccessKind,
    pub(crate) instruction: u32,
    /// The stamp of the access in its block's order.
    pub(crate) stamp: u32,
}

impl GlobalAccess {
    fn end(&self) -> u64 {
        let lanes = if self.is_same { 1 } else { self.lanes };
        self.address.saturating_add(u64::from(lanes) * u64::from(self.lane_bytes))
    }

    fn lane_of(&self, address: u64) -> u32 {
        self.first_lane + ((address - self.address) / u64::from(self.lane_bytes.max(1))) as u32
    }
}

/// An access that was made before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Earlier {
    pub(crate) block: u32,
    /// The number of the thread in its block.
    pub(crate) thread: u32,
    pub(crate) kind: AccessKind,
    pub(crate) instruction: u32,
    /// The bytes of a lane.
    pub(crate) lane_bytes: u8,
}

/// Two accesses of the same byte without order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GlobalConflict {
    /// The first byte that both accessed.
    pub(crate) address: u64,
    /// The lane of the later access.
    pub(crate) lane: u32,
    pub(crate) earlier: Earlier,
}

/// The accesses of a launch's threads to global memory.
#[derive(Debug, Default)]
pub(crate) struct Races {
    records: Records,
    sectors: Sectors,
    blocks: Blocks,
}

impl Races {
    /// Records an access, and returns an earlier one that races with it. Call it before the bytes
    /// change.
    ///
    /// `seen(thread, other, stamp)` returns whether in the access's block the access of `other`
    /// with `stamp` is ordered before what `thread` does now. For threads of two warps it must
    /// return the same whatever their lanes.
    pub(crate) fn record(
        &mut self,
        access: &GlobalAccess,
        seen: impl Fn(u32, u32, u32) -> bool,
    ) -> Option<GlobalConflict> {
        let mut found = None;
        if access.kind != AccessKind::StrongRead {
            found = self.check(access, &seen);
            self.blocks.accessed(access.block);
        }
        if access.kind.is_strong() {
            self.blocks.acquire(access.block);
        }
        found
    }

    /// Records a fence of a thread of a block, of the scope of the device or a wider one. Call it
    /// also before an access that releases.
    pub(crate) fn fence(&mut self, block: u32) {
        if !self.blocks.release(block) {
            self.clear();
        }
    }

    /// Orders what all blocks had done before their last fence before what a block does now.
    pub(crate) fn acquire(&mut self, block: u32) {
        self.blocks.acquire(block);
    }

    fn check(
        &mut self,
        access: &GlobalAccess,
        seen: &impl Fn(u32, u32, u32) -> bool,
    ) -> Option<GlobalConflict> {
        if self.records.bytes() + self.sectors.bytes() > LIMIT {
            self.clear();
        }
        let record = Record {
            block: access.block,
            first_thread: access.first_thread,
            instruction: access.instruction,
            stamp: access.stamp,
            time: self.blocks.time(),
            kind: access.kind,
            // Of a sector, more bytes than it has are all of one lane.
            lane_bytes: access.lane_bytes.min(128) as u8,
        };
        let number = self.records.add(record);
        let check = Check { record, records: &self.records, blocks: &self.blocks, seen };
        let mut found = None;
        let mut at = access.address;
        let end = access.end();
        while at < end {
            let sector_end = (at / SECTOR * SECTOR).saturating_add(SECTOR);
            let lane = access.lane_of(at);
            let span = Span {
                from: (at % SECTOR) as usize,
                bytes: (sector_end.min(end) - at) as usize,
                entry: Entry::new(number, lane),
                lane_bytes: access.lane_bytes.max(1),
            };
            let conflict = self.sectors.record(at / SECTOR, &span, &check);
            if let (Some((offset, other)), None) = (conflict, &found) {
                let address = at / SECTOR * SECTOR + offset as u64;
                found = Some(GlobalConflict {
                    address,
                    lane: access.lane_of(address),
                    earlier: self.records.earlier(other),
                });
            }
            at = sector_end;
        }
        found
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// An access that is being made, and what it is compared with.
struct Check<'a, S> {
    record: Record,
    records: &'a Records,
    blocks: &'a Blocks,
    seen: &'a S,
}

impl<S: Fn(u32, u32, u32) -> bool> Check<'_, S> {
    fn races(&self, mine: Entry, other: Entry) -> bool {
        let kind = self.record.kind;
        let earlier = self.records.get(other);
        let is_race = races(kind, earlier.kind)
            || (is_too_narrow(kind, earlier.kind) && self.record.block != earlier.block);
        is_race && !self.is_ordered(mine, other)
    }

    /// Returns whether the earlier access `other` is ordered before `mine`.
    fn is_ordered(&self, mine: Entry, other: Entry) -> bool {
        let record = &self.record;
        let earlier = self.records.get(other);
        if record.block == earlier.block {
            let thread = record.first_thread + mine.lane();
            let before = earlier.first_thread + other.lane();
            if thread == before || (self.seen)(thread, before, earlier.stamp) {
                return true;
            }
        }
        self.blocks.is_ordered(earlier.block, earlier.time, record.block)
    }
}

/// Returns whether two accesses of these kinds are a race if they are not ordered. Strong reads are
/// not kept.
fn races(one: AccessKind, other: AccessKind) -> bool {
    one == AccessKind::Write || other == AccessKind::Write
}

/// Returns whether two changes of different blocks are a race if they are not ordered: one of them
/// is atomic for its block alone.
fn is_too_narrow(one: AccessKind, other: AccessKind) -> bool {
    let changes = |kind| matches!(kind, AccessKind::StrongWrite | AccessKind::BlockWrite);
    let is_narrow = one == AccessKind::BlockWrite || other == AccessKind::BlockWrite;
    changes(one) && changes(other) && is_narrow
}
