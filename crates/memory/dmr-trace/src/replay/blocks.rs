//! The blocks that a replay holds: by their id in the trace, and by address.

use std::collections::{BTreeMap, HashMap};

use dmr_core::{AllocationRecord, DeviceBlock};

use super::streams::TraceStream;
use super::tags::TagPeaks;
use crate::summary::TagPeak;

/// The id that pairs an allocation with its free: the generation where the trace has one (an
/// address can be logged as allocated again before its free is logged), else the pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockKey {
    is_generation: bool,
    device: u32,
    number: u64,
}

impl BlockKey {
    pub(crate) fn of(record: &AllocationRecord) -> Self {
        let is_generation = record.generation != 0;
        let number = if is_generation { record.generation } else { record.ptr };
        Self { is_generation, device: record.device, number }
    }
}

/// A block that the replay holds.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) block: DeviceBlock,
    /// The row that allocated it.
    pub(crate) line: u64,
    /// The stream that the row names.
    pub(crate) stream: TraceStream,
    /// The pattern that it was filled with.
    pub(crate) pattern: Option<u32>,
    /// `true` if the resource refused to free it.
    pub(crate) refused: bool,
    /// The row of another live block that has a byte of this one, which is then not in the map by
    /// address.
    pub(crate) overlaps: Option<u64>,
}

/// The entry of an id.
#[derive(Debug)]
pub(crate) enum Entry {
    Held(Held),
    /// The allocation failed in the replay, so its free has nothing to do.
    NotAllocated,
}

/// The addresses of a live block, from its first byte on.
#[derive(Debug)]
struct AddressEntry {
    /// The address after its last byte.
    end: u64,
    /// The row that allocated it.
    line: u64,
}

/// All blocks that a replay holds.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    by_key: HashMap<BlockKey, Entry>,
    /// The live blocks by the address of their first byte, except for those that overlap another.
    by_address: BTreeMap<u64, AddressEntry>,
    /// Blocks that no row can free: refused by the resource, or their id was allocated again.
    unnamed: Vec<Held>,
    bytes: u64,
    peaks: TagPeaks,
}

impl Blocks {
    /// Returns how many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len() + self.unnamed.len()
    }

    /// Returns the requested bytes of the blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the tags of the blocks when their bytes were most.
    pub(crate) fn peak_tags(&self) -> Vec<TagPeak> {
        self.peaks.at_peak()
    }

    /// Adds a block.
    pub(crate) fn hold(&mut self, block: DeviceBlock, line: u64, stream: TraceStream) -> Held {
        let overlaps = self.map(&block, line);
        self.bytes = self.bytes.saturating_add(block.bytes() as u64);
        self.peaks.add(block.tag(), block.bytes() as u64);
        Held { block, line, stream, pattern: None, refused: false, overlaps }
    }

    /// Sets the entry of an id. Returns the line of a block that had the id and was never freed.
    pub(crate) fn insert(&mut self, key: BlockKey, entry: Entry) -> Option<u64> {
        match self.by_key.insert(key, entry) {
            Some(Entry::Held(before)) => {
                let line = before.line;
                self.unnamed.push(before);
                Some(line)
            }
            _ => None,
        }
    }

    /// Removes and returns the entry of an id.
    pub(crate) fn take(&mut self, key: BlockKey) -> Option<Entry> {
        self.by_key.remove(&key)
    }

    /// Removes a block, right before it is freed.
    pub(crate) fn release(&mut self, held: &Held) {
        if held.overlaps.is_none() {
            self.by_address.remove(&held.block.ptr());
        }
        self.bytes = self.bytes.saturating_sub(held.block.bytes() as u64);
        self.peaks.remove(held.block.tag(), held.block.bytes() as u64);
    }

    /// Keeps a block that no row can free.
    pub(crate) fn keep(&mut self, held: Held) {
        self.unnamed.push(held);
    }

    /// Removes and returns all blocks, in the order of their rows. Each is then [kept](Self::keep)
    /// or [released](Self::release).
    pub(crate) fn drain(&mut self) -> Vec<Held> {
        let named = self.by_key.drain().filter_map(|(_, entry)| match entry {
            Entry::Held(held) => Some(held),
            Entry::NotAllocated => None,
        });
        let mut left: Vec<_> = named.chain(self.unnamed.drain(..)).collect();
        left.sort_unstable_by_key(|held| held.line);
        left
    }

    /// Adds a block to the map by address, or returns the row of one that overlaps it. Blocks in
    /// the map are disjoint, so only the last one that starts before the end can overlap.
    fn map(&mut self, block: &DeviceBlock, line: u64) -> Option<u64> {
        let start = block.ptr();
        let end = start.saturating_add(block.bytes() as u64);
        let before = self.by_address.range(..end).next_back();
        if let Some((_, other)) = before
            && other.end > start
        {
            return Some(other.line);
        }
        self.by_address.insert(start, AddressEntry { end, line });
        None
    }
}
