//! The player's model of a running program: what the program holds, and what it has done with each
//! block.
//!
//! The facts of a block are kept by its generation and not by its name: they outlive the block
//! while a call or a window still uses it, and another block may have its memory by then.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use dmr_buffer::{DeviceBuffer, PinnedBuffer};
use dmr_core::{
    Access, BlockParts, BlockState, ByteRange, DeviceBlock, Generation, StreamId, UseTokens,
    WholeBlock,
};
use dmr_streams::StreamLease;

use super::content::Content;
use crate::conflicts::Counts;
use crate::program::CaptureMode;
use crate::random::Random;

/// The model of a running program. Locked only while the model changes or work is submitted,
/// never in a call of the library.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) streams: Vec<ProgramStream>,
    pub(crate) blocks: HashMap<u32, Held>,
    pub(crate) windows: HashMap<u32, Open>,
    pub(crate) facts: HashMap<Generation, Facts>,
    /// A capture on a stream that is not the pool's.
    pub(crate) foreign_capture: Option<Capture>,
    /// Captures on the program's streams, by slot.
    pub(crate) captures: HashMap<usize, Capture>,
    /// The number of captures on the program's streams that have begun.
    pub(crate) captures_begun: u64,
    /// The number that had begun when the last capture of a slot ended.
    pub(crate) captures_ended: HashMap<usize, u64>,
    /// The number that had begun when a line began.
    pub(crate) captures_at_line: HashMap<usize, u64>,
    pub(crate) pinned: HashMap<u32, Pinned>,
    pub(crate) random: Random,
    pub(crate) counts: Counts,
    /// The slot of the stream that freed the block at an address last.
    pub(crate) freed_at: HashMap<u64, usize>,
    /// The uses of each line that has begun.
    pub(crate) footprints: HashMap<usize, Footprint>,
    /// The number of the last window.
    pub(crate) windows_opened: u64,
    /// The number of declared uses.
    pub(crate) uses_declared: u64,
    /// Calls of the library in progress.
    pub(crate) calls: usize,
    /// Calls of the library that have begun.
    pub(crate) calls_begun: u64,
    /// Calls of the library in progress on a stream, by slot.
    pub(crate) calls_on: HashMap<usize, usize>,
    /// Streams whose retirement is in progress.
    pub(crate) retiring: Vec<StreamId>,
    /// Streams whose retirement has waited for the calls that used them.
    pub(crate) retired_in_time: Vec<StreamId>,
}

/// One of the program's streams.
#[derive(Debug)]
pub(crate) struct ProgramStream {
    /// `None` while it is exchanged.
    pub(crate) lease: Option<Arc<StreamLease>>,
    /// A stream that the pool does not own.
    pub(crate) is_adopted: bool,
}

/// A block that the program holds.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) block: DeviceBlock,
    /// The whole that the block is a part of.
    pub(crate) whole: Option<WholeBlock>,
    /// The lease of its home stream; `None` if the program has dropped that.
    pub(crate) home: Option<Arc<StreamLease>>,
    /// `true` if its home stream has undeclared work with it.
    pub(crate) is_private: bool,
}

/// The model of a block, until no work can use it any more.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) content: Content,
    /// The address of the whole block, and its bytes, which `usage` counts.
    pub(crate) ptr: u64,
    pub(crate) bytes: u64,
    pub(crate) windows: Vec<Window>,
    /// All uses so far, and the allocation.
    pub(crate) past: Vec<Window>,
    /// Calls in progress that name it.
    pub(crate) calls: usize,
    /// A counter that changes when a call or a window begins or ends.
    pub(crate) churn: u64,
    /// Calls in progress that borrow the block: it cannot be freed.
    pub(crate) borrows: usize,
    pub(crate) is_deallocated: bool,
    /// `true` if the player has reported it to the simulator.
    pub(crate) is_reported: bool,
    pub(crate) last_write: Option<usize>,
    pub(crate) readers: Vec<usize>,
}

/// An open window on a block, or a use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) number: u64,
    pub(crate) stream: usize,
    pub(crate) access: Access,
    pub(crate) bytes: ByteRange,
}

impl Window {
    /// Returns whether another stream's use of overlapping bytes must come after it, because one of
    /// the two writes.
    pub(crate) fn is_before(&self, used: &Use, stream: usize) -> bool {
        self.stream != stream
            && self.access.conflicts_with(used.access)
            && self.bytes.overlaps(used.bytes())
    }
}

/// A use of a block in a launch.
#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) block: DeviceBlock,
    pub(crate) access: Access,
    /// The bytes of the block; `None`: all, and what it may grow by.
    pub(crate) part: Option<Range<usize>>,
}

impl Use {
    /// Makes a use of a whole block.
    pub(crate) fn whole(block: DeviceBlock, access: Access) -> Self {
        Self { block, access, part: None }
    }

    /// Returns the range that the library gets.
    pub(crate) fn bytes(&self) -> ByteRange {
        match &self.part {
            None => ByteRange::WHOLE,
            Some(part) => ByteRange::new(self.block.ptr() + part.start as u64, part.len()),
        }
    }

    /// Returns the bytes of the block that the work uses.
    pub(crate) fn range(&self) -> Range<usize> {
        self.part.clone().unwrap_or(0..self.block.bytes())
    }

    pub(crate) fn generation(&self) -> Generation {
        self.block.generation()
    }
}

/// The open windows of one launch.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) tokens: UseTokens,
    pub(crate) stream: Arc<StreamLease>,
    pub(crate) uses: Vec<Use>,
    /// The number of each window.
    pub(crate) number: u64,
    /// `true` if no work was submitted.
    pub(crate) is_idle: bool,
}

/// A capture in progress.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) mode: CaptureMode,
    /// Numbers the captures on the program's streams, from 1.
    pub(crate) number: u64,
    /// `true` if a call that was in progress when it began has ended it, and was refused.
    pub(crate) is_spoiled: bool,
}

/// Pinned memory and its counterpart on the device.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) host: PinnedBuffer<u32>,
    pub(crate) device: DeviceBuffer<u32>,
    /// The value of each word of the pinned memory; `None`: unknown.
    pub(crate) on_host: Option<u32>,
    /// The value of each word of the counterpart; `None`: unknown.
    pub(crate) on_device: Option<u32>,
    pub(crate) facts: Facts,
}

/// The uses of a line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Footprint {
    pub(crate) blocks: Vec<Generation>,
    pub(crate) stream: Option<usize>,
    pub(crate) frees: Option<Generation>,
    pub(crate) retires: Option<usize>,
}

impl Facts {
    /// Counts the beginning or the end of a call.
    pub(crate) fn enter(&mut self) {
        self.calls += 1;
        self.churn += 1;
    }

    /// Counts the end of a call.
    pub(crate) fn leave(&mut self) {
        self.calls -= 1;
        self.churn += 1;
    }
}

impl State {
    pub(crate) fn fact(&mut self, block: Generation) -> &mut Facts {
        self.facts.entry(block).or_default()
    }

    /// Removes the model of a block that no work can use any more.
    pub(crate) fn remove_if_over(&mut self, block: Generation) {
        let is_over =
            |facts: &Facts| facts.is_deallocated && facts.calls == 0 && facts.windows.is_empty();
        if self.facts.get(&block).is_some_and(is_over) {
            self.facts.remove(&block);
        }
    }

    /// Returns the number of captures on the program's streams that had begun when the line began.
    pub(crate) fn captures_before(&self, line: usize) -> u64 {
        self.captures_at_line.get(&line).copied().unwrap_or(self.captures_begun)
    }

    /// Numbers the uses of a launch, and returns the number of the first.
    pub(crate) fn windows_declared(&mut self, uses: usize) -> u64 {
        let first = self.uses_declared;
        self.uses_declared += uses as u64;
        first
    }

    /// Records whether the home stream has undeclared work with a block.
    pub(crate) fn set_private(&mut self, block: u32, is_private: bool) {
        if let Some(held) = self.blocks.get_mut(&block) {
            held.is_private = is_private;
        }
    }

    /// Returns the lease of a stream of the program.
    pub(crate) fn lease(&self, stream: usize) -> Option<Arc<StreamLease>> {
        self.streams.get(stream)?.lease.clone()
    }
}

/// Names the stream of a lease: two leases of one stream have the same number.
pub(crate) fn slot_of(lease: &StreamLease) -> usize {
    lease.id().slot()
}

/// Makes the block again, for device work in a window that outlives it. It is never deallocated.
pub fn shadow_of(block: &DeviceBlock) -> DeviceBlock {
    // SAFETY: only device work is done with it, inside of a window that keeps the memory.
    unsafe {
        DeviceBlock::from_parts(BlockParts {
            ptr: block.ptr(),
            bytes: block.bytes(),
            reserved_bytes: block.reserved_bytes(),
            alignment: block.alignment(),
            device_ordinal: block.device_ordinal(),
            alloc_stream: block.alloc_stream(),
            tag: block.tag(),
            generation: block.generation(),
            slot: block.id().slot(),
            state: BlockState::Live,
            part_depth: 0,
        })
    }
}
