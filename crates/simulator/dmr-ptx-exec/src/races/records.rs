//! The accesses that the bytes of memory refer to.

use super::{AccessKind, Earlier};

/// An access by the lanes of a warp in one instruction, but for the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) block: u32,
    pub(super) first_thread: u32,
    pub(super) instruction: u32,
    pub(super) stamp: u32,
    pub(super) time: u32,
    pub(super) kind: AccessKind,
    pub(super) lane_bytes: u8,
}

/// An access of one lane: the number of a record, and the lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry(u32);

impl Entry {
    /// No access.
    pub(super) const NONE: Self = Self(0);

    #[inline]
    pub(super) fn new(record: u32, lane: u32) -> Self {
        Self(record << 5 | lane & 31)
    }

    #[inline]
    pub(super) fn lane(self) -> u32 {
        self.0 & 31
    }

    /// Returns the access of a lane that comes `lanes` after this one.
    #[inline]
    pub(super) fn after(self, lanes: u32) -> Self {
        if self == Self::NONE { self } else { Self::new(self.0 >> 5, self.lane() + lanes) }
    }
}

/// The number of records that are looked through for an equal one.
const RECENT: usize = 1 << 12;
/// The number of bits of a record's number.
const BITS: u32 = 27;

/// All records of a launch. Equal ones that are near in time share a number.
#[derive(Debug)]
pub(super) struct Records {
    /// The first one is that of [`Entry::NONE`].
    list: Vec<Record>,
    /// Numbers of records, by a hash of what is the same in each round of a loop.
    recent: Vec<u32>,
}

impl Default for Records {
    fn default() -> Self {
        let none = Record {
            block: u32::MAX,
            first_thread: 0,
            instruction: 0,
            stamp: 0,
            time: 0,
            // Races with nothing.
            kind: AccessKind::StrongRead,
            lane_bytes: 1,
        };
        Self { list: vec![none], recent: vec![0; RECENT] }
    }
}

impl Records {
    /// Returns the number of a record, which is added if it is new.
    pub(super) fn add(&mut self, record: Record) -> u32 {
        let hash = record.block.wrapping_mul(0x9e37_79b1)
            ^ record.first_thread.wrapping_mul(0x85eb_ca77)
            ^ record.instruction.wrapping_mul(0xc2b2_ae3d);
        let place = (hash >> (32 - RECENT.ilog2())) as usize;
        let recent = self.recent[place];
        if self.list[recent as usize] == record {
            return recent;
        }
        let number = self.list.len() as u32 & ((1 << BITS) - 1);
        self.list.push(record);
        self.recent[place] = number;
        number
    }

    #[inline]
    pub(super) fn get(&self, entry: Entry) -> &Record {
        &self.list[(entry.0 >> 5) as usize]
    }

    pub(super) fn earlier(&self, entry: Entry) -> Earlier {
        let record = self.get(entry);
        let thread = record.first_thread + entry.lane();
        let Record { block, kind, instruction, lane_bytes, .. } = *record;
        Earlier { block, thread, kind, instruction, lane_bytes }
    }

    /// Returns the bytes that they take: at most [`super::LIMIT`], which is reached before their
    /// numbers run out.
    pub(super) fn bytes(&self) -> usize {
        self.list.len() * size_of::<Record>()
    }
}

const _: () = assert!(super::LIMIT / size_of::<Record>() < 1 << BITS);
