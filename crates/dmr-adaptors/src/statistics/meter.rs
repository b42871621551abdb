//! Bytes and blocks, counted together.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::gauge::{Part, Whole};
use super::report::Counter;

/// How much a thread keeps back at most, in bytes and in blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) bytes: i64,
    pub(super) blocks: i64,
    /// In bytes also so many of the blocks that are counted.
    pub(super) times: i64,
}

impl Step {
    /// The step where blocks of this size are counted.
    #[inline]
    pub(super) fn for_blocks_of(self, bytes: u64) -> Self {
        let least = (bytes as i64).saturating_mul(self.times);
        Self { bytes: self.bytes.max(least), ..self }
    }
}

/// How a [`Step`] is found.
#[derive(Clone, Copy, Debug)]
pub(super) enum Precision {
    /// Always this step.
    Fixed(Step),
    /// The thread's share of a part of the peak, but at least this step.
    AtLeast(Step),
    /// This step in bytes; in blocks, the share.
    FixedBytes(Step),
}

/// Which part of the peak over all, all threads together may keep back.
const PARTS_OF_PEAK: i64 = 4;

/// The step that a thread works with. Only that thread writes it.
#[derive(Debug, Default)]
pub(super) struct OwnStep {
    bytes: AtomicI64,
    blocks: AtomicI64,
    times: AtomicI64,
}

impl OwnStep {
    #[inline]
    pub(super) fn get(&self) -> Step {
        let own = [&self.bytes, &self.blocks, &self.times];
        let [bytes, blocks, times] = own.map(|step| step.load(Ordering::Relaxed));
        Step { bytes, blocks, times }
    }

    /// Takes the step that is right now that `threads` threads count.
    pub(super) fn renew(&self, precision: Precision, overall: &Wholes, threads: i64) {
        let share = |whole: &Whole, least: i64| {
            least.max(whole.told_peak() / PARTS_OF_PEAK / threads.max(1))
        };
        let step = match precision {
            Precision::Fixed(step) => step,
            Precision::AtLeast(Step { bytes, blocks, times }) => {
                let bytes = share(&overall.bytes, bytes);
                Step { bytes, blocks: share(&overall.blocks, blocks), times }
            }
            Precision::FixedBytes(Step { bytes, blocks, times }) => {
                Step { bytes, blocks: share(&overall.blocks, blocks), times }
            }
        };
        self.bytes.store(step.bytes, Ordering::Relaxed);
        self.blocks.store(step.blocks, Ordering::Relaxed);
        self.times.store(step.times, Ordering::Relaxed);
    }
}

/// One thread's part of two peaks.
#[derive(Debug, Default)]
pub(super) struct Peaks {
    bytes: Part,
    blocks: Part,
}

impl Peaks {
    /// A block of so many bytes was handed out. Answers whether the wholes have to be told.
    #[inline]
    pub(super) fn add(&self, bytes: u64, step: Step) -> bool {
        self.bytes.add(bytes, step.bytes) | self.blocks.add(1, step.blocks)
    }

    /// A block has grown by `more_bytes`. Returns whether the wholes have to be told.
    pub(super) fn grow(&self, more_bytes: u64, step: Step) -> bool {
        self.bytes.add(more_bytes, step.bytes)
    }

    /// A block of so many bytes was given back. Answers whether the wholes have to be told.
    #[inline]
    pub(super) fn remove(&self, bytes: u64, step: Step) -> bool {
        self.bytes.remove(bytes, step.bytes) | self.blocks.remove(1, step.blocks)
    }

    /// Tells the wholes what they have to be told.
    pub(super) fn tell_what_is_due(&self, step: Step, wholes: &Wholes) {
        if self.bytes.is_due(step.bytes) {
            self.bytes.tell(&wholes.bytes);
        }
        if self.blocks.is_due(step.blocks) {
            self.blocks.tell(&wholes.blocks);
        }
    }

    /// Tells the wholes all there is.
    pub(super) fn tell(&self, wholes: &Wholes) {
        self.bytes.tell(&wholes.bytes);
        self.blocks.tell(&wholes.blocks);
    }
}

/// One thread's part of the peaks, and of all that ever was: a cache line, which it shares with no
/// other thread's.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Meter {
    pub(super) peaks: Peaks,
    allocated_bytes: AtomicU64,
    allocations: AtomicU64,
    freed_bytes: AtomicU64,
    frees: AtomicU64,
}

impl Meter {
    /// As [`Peaks::add`].
    #[inline]
    pub(super) fn add(&self, bytes: u64, step: Step) -> bool {
        count(&self.allocated_bytes, bytes);
        count(&self.allocations, 1);
        self.peaks.add(bytes, step)
    }

    /// As [`Peaks::grow`].
    pub(super) fn grow(&self, more_bytes: u64, step: Step) -> bool {
        count(&self.allocated_bytes, more_bytes);
        self.peaks.grow(more_bytes, step)
    }

    /// As [`Peaks::remove`].
    #[inline]
    pub(super) fn remove(&self, bytes: u64, step: Step) -> bool {
        count(&self.freed_bytes, bytes);
        count(&self.frees, 1);
        self.peaks.remove(bytes, step)
    }

    /// Whether this thread ever counted here.
    pub(super) fn is_used(&self) -> bool {
        [&self.allocations, &self.frees].iter().any(|count| count.load(Ordering::Relaxed) != 0)
    }

    /// What this thread counted.
    pub(super) fn totals(&self) -> Totals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            allocated_bytes: read(&self.allocated_bytes),
            allocations: read(&self.allocations),
            freed_bytes: read(&self.freed_bytes),
            frees: read(&self.frees),
        }
    }
}

/// Adds to a counter that only this thread writes.
#[inline]
pub(super) fn count(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// All that ever was.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    allocated_bytes: u64,
    allocations: u64,
    freed_bytes: u64,
    pub(super) frees: u64,
}

impl std::iter::Sum for Totals {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            allocated_bytes: sum.allocated_bytes.wrapping_add(one.allocated_bytes),
            allocations: sum.allocations + one.allocations,
            freed_bytes: sum.freed_bytes.wrapping_add(one.freed_bytes),
            frees: sum.frees + one.frees,
        })
    }
}

impl Totals {
    /// Bytes and blocks, with these peaks.
    pub(super) fn counters(&self, [bytes_peak, blocks_peak]: [u64; 2]) -> [Counter; 2] {
        let counter = |added: u64, removed, peak: u64| {
            // A block can be freed on another thread between the reading of one and the other.
            let current = added.saturating_sub(removed);
            Counter { current, peak: peak.max(current), total: added }
        };
        [
            counter(self.allocated_bytes, self.freed_bytes, bytes_peak),
            counter(self.allocations, self.frees, blocks_peak),
        ]
    }
}

/// What all threads have told.
#[derive(Debug, Default)]
pub(super) struct Wholes {
    bytes: Whole,
    blocks: Whole,
}

impl Wholes {
    /// The peaks of bytes and of blocks.
    pub(super) fn peaks<'a>(&self, parts: impl Iterator<Item = &'a Peaks> + Clone) -> [u64; 2] {
        let of = |whole: &Whole, part: fn(&Peaks) -> &Part| {
            whole.peak(|| parts.clone().map(|peaks| part(peaks).highest()).max().unwrap_or(0))
        };
        [of(&self.bytes, |peaks| &peaks.bytes), of(&self.blocks, |peaks| &peaks.blocks)]
    }

    pub(super) fn reset_peaks(&self) {
        self.bytes.reset_peak();
        self.blocks.reset_peak();
    }
}
