//! An allocation: where its red zones are, and what an error says about it.

use std::backtrace::Backtrace;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

use dmr_core::{AllocTag, Corruption, CorruptionKind, DeviceBlock, Generation, StreamId};

/// The pattern of red zones of a live block.
pub(super) const RED_ZONE: u32 = 0x5EFD_A3B6;
/// The pattern of a fresh block: NaN as `f32`, `f64` or `bf16`.
pub(super) const FRESH: u32 = 0xFFC0_FFEE;
/// The pattern of a deallocated block, red zones included: NaN, too.
pub(super) const FREED: u32 = 0xFFDE_ADBF;

/// Red zones, and so the payload between them, start at multiples of this many bytes.
pub(super) const STEP: usize = 256;

#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) generation: Generation,
    /// The requested bytes; 0 for a block that could not be filled, which no caller has.
    pub(super) bytes: usize,
    pub(super) tag: AllocTag,
    pub(super) alloc_stream: StreamId,
    pub(super) red_zone: usize,
    pub(super) allocated_at: Option<Backtrace>,
    /// A bit for each place in which a wrong byte was reported; each is reported once.
    pub(super) reported: AtomicU8,
}

/// The expected content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Red zones are [`RED_ZONE`]; the bytes between them are the user's.
    Live,
    /// All bytes are [`FREED`].
    Freed,
}

impl Allocation {
    /// Returns the bytes with both red zones; `None` if that overflows.
    pub(super) fn whole_bytes(bytes: usize, red_zone: usize) -> Option<usize> {
        bytes.checked_next_multiple_of(STEP)?.checked_add(red_zone.checked_mul(2)?)
    }

    pub(super) fn new(
        whole: &DeviceBlock,
        bytes: usize,
        red_zone: usize,
        allocated_at: Option<Backtrace>,
    ) -> Self {
        Self {
            generation: whole.generation(),
            bytes,
            tag: whole.tag(),
            alloc_stream: whole.alloc_stream(),
            red_zone,
            allocated_at,
            reported: AtomicU8::new(0),
        }
    }

    /// Returns the range of the user's bytes in the whole block.
    pub(super) fn payload(&self) -> Range<usize> {
        self.red_zone..self.red_zone + self.bytes
    }

    /// Returns both red zones. The second begins at the byte after the payload.
    pub(super) fn red_zones(&self, whole_bytes: usize) -> [Range<usize>; 2] {
        let Range { start, end } = self.payload();
        [0..start, end..whole_bytes]
    }

    pub(super) fn allocated_at(&self) -> Option<String> {
        self.allocated_at.as_ref().map(Backtrace::to_string)
    }

    /// Returns the corruption that a wrong byte at `offset` of the whole block is; `None` if one in
    /// the same place was reported before.
    pub(super) fn corruption(&self, phase: Phase, offset: usize) -> Option<Corruption> {
        let payload = self.payload();
        let (kind, place) = if offset < payload.start {
            (CorruptionKind::Underrun, 1)
        } else if offset >= payload.end {
            (CorruptionKind::Overrun, 2)
        } else {
            (CorruptionKind::WriteAfterFree, 4)
        };
        let place = if phase == Phase::Live { place } else { place << 4 };
        if self.reported.fetch_or(place, Ordering::Relaxed) & place != 0 {
            return None;
        }
        Some(Corruption {
            kind,
            generation: self.generation,
            tag: self.tag,
            bytes: self.bytes,
            alloc_stream: self.alloc_stream,
            offset: offset as i64 - payload.start as i64,
            allocated_at: self.allocated_at().map(String::into_boxed_str),
        })
    }
}
