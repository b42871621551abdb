//! What the guard knows of an allocation: where its red zones are, and who asked for it.

use std::backtrace::Backtrace;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

use dmr_core::{AllocTag, Corruption, CorruptionKind, DeviceBlock, Generation, StreamId};

/// What red zones hold while their block is live.
pub(super) const RED_ZONE: u32 = 0x5EFD_A3B6;
/// What a fresh block holds: not a number, as `f32`, `f64` or `bf16`.
pub(super) const FRESH: u32 = 0xFFC0_FFEE;
/// What a block that was given back holds, red zones included: not a number either.
pub(super) const FREED: u32 = 0xFFDE_ADBF;

/// Red zones, and so the payload between them, start at multiples of this many bytes.
pub(super) const STEP: usize = 256;

#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) generation: Generation,
    pub(super) bytes: usize,
    tag: AllocTag,
    alloc_stream: StreamId,
    red_zone: usize,
    allocated_at: Option<Backtrace>,
    /// A bit for each place in which a wrong byte was reported: once is enough.
    reported: AtomicU8,
}

/// What the bytes of a block should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Red zones are red, what is between them is the user's.
    Live,
    /// All of it is [`FREED`].
    Freed,
}

impl Allocation {
    /// Bytes with both red zones; `None` if that overflows.
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

    /// What is the user's, in bytes of the whole block.
    pub(super) fn payload(&self) -> Range<usize> {
        self.red_zone..self.red_zone + self.bytes
    }

    /// Both red zones. The second begins right after the payload: at the next byte.
    pub(super) fn red_zones(&self, whole_bytes: usize) -> [Range<usize>; 2] {
        let Range { start, end } = self.payload();
        [0..start, end..whole_bytes]
    }

    pub(super) fn allocated_at(&self) -> Option<String> {
        self.allocated_at.as_ref().map(Backtrace::to_string)
    }

    /// What a wrong byte at `offset` of the whole block means; `None` if a wrong byte in the same
    /// place was reported before.
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
