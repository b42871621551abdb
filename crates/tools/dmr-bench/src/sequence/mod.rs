//! Sequences of allocations and frees, the same ones that the peers' programs make.

mod hash;
mod multistream;
mod pingpong;
mod pressure;
mod pressure_work;
mod random;
mod trace;

pub use hash::Fnv;
pub use multistream::{MULTISTREAM_SEED, multistream};
pub use pingpong::pingpong;
pub use pressure::{Pressure, lock_step_peak};
pub use pressure_work::{Exchange, PRESSURE_WORK_SEED, READ_BYTES, Step, Steps, share};
pub use random::random;
pub use trace::from_trace;

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// True for an allocation, false for a free.
    pub allocates: bool,
    /// Bytes of the block, for a free as well.
    pub bytes: u64,
    /// The slot that keeps the block. Slots are reused.
    pub slot: usize,
    /// The index of the stream of the run.
    pub stream: usize,
}

/// The operations of one thread.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// The operations, in order.
    pub ops: Vec<Op>,
    /// The most blocks that are live at once.
    pub slots: usize,
    /// The number of streams.
    pub streams: usize,
    /// The peak of the live bytes: allocated and not deallocated.
    pub peak_live: u64,
    /// The operation after which that is so.
    pub peak_at: usize,
    /// The hash of the operations, for the peers' check values.
    pub hash: Fnv,
    live: u64,
    free_slots: Vec<usize>,
}

impl Sequence {
    /// A sequence on this many streams.
    #[must_use]
    pub fn new(streams: usize) -> Self {
        Self { streams, ..Self::default() }
    }

    /// Returns the same operations in bursts of `ops`, to be run one after the other on the same
    /// slots.
    #[must_use]
    pub fn bursts(&self, ops: usize) -> Vec<Self> {
        let burst = |ops: &[Op]| Self {
            ops: ops.to_vec(),
            slots: self.slots,
            streams: self.streams,
            ..Self::default()
        };
        self.ops.chunks(ops.max(1)).map(burst).collect()
    }

    /// Adds an allocation; returns its slot.
    pub fn allocate(&mut self, bytes: u64, stream: usize) -> usize {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        });
        self.hash.word(bytes);
        self.live += bytes;
        if self.live > self.peak_live {
            self.peak_live = self.live;
            self.peak_at = self.ops.len();
        }
        self.ops.push(Op { allocates: true, bytes, slot, stream });
        slot
    }

    /// Adds a free of the block in a slot. `index` identifies the block in the hash.
    pub fn free(&mut self, slot: usize, bytes: u64, stream: usize, index: u64) {
        self.hash.word(1 << 63 | index);
        self.live -= bytes;
        self.free_slots.push(slot);
        self.ops.push(Op { allocates: false, bytes, slot, stream });
    }
}
