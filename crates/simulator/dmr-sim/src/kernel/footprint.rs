//! The memory that a launch accesses, as it was declared.

use crate::access::{AccessKind, AccessedRanges, AddressRange};
/// The memory that a launch accesses: declared when it is submitted and enforced when it runs, or
/// recorded when it runs.
#[derive(Clone, Debug, Default)]
pub struct Footprint {
    pub(crate) reads: Vec<AddressRange>,
    pub(crate) writes: Vec<AddressRange>,
    pub(crate) atomics: Vec<AddressRange>,
    pub(crate) is_recorded: bool,
    pub(crate) nanoseconds: Option<u64>,
}

impl Footprint {
    /// Makes a footprint without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the footprint of a launch that may access any memory: what its body touches is
    /// recorded when it runs, to the byte.
    ///
    /// The launch is checked as if it had declared these bytes when it was submitted. Checks of
    /// work submitted later wait until it has run. An access outside of all live memory is a
    /// finding, and does nothing.
    #[must_use]
    pub fn recorded() -> Self {
        Self { is_recorded: true, ..Self::default() }
    }

    /// Adds a read of `len` bytes at `ptr`.
    #[must_use]
    pub fn reads(mut self, ptr: u64, len: u64) -> Self {
        self.reads.push(AddressRange::new(ptr, len));
        self
    }

    /// Adds a write of `len` bytes at `ptr`. The kernel may read them back once they are written;
    /// declare a read as well if it needs the old bytes.
    #[must_use]
    pub fn writes(mut self, ptr: u64, len: u64) -> Self {
        self.writes.push(AddressRange::new(ptr, len));
        self
    }

    /// Adds `len` bytes at `ptr` that the kernel reads and writes by atomic operations only. Atomic
    /// operations of two launches do not race with each other; an atomic operation and a plain
    /// access do.
    #[must_use]
    pub fn atomics(mut self, ptr: u64, len: u64) -> Self {
        self.atomics.push(AddressRange::new(ptr, len));
        self
    }

    /// Sets the duration on the virtual clock that `cuEventElapsedTime` reads.
    #[must_use]
    pub fn takes(mut self, nanoseconds: u64) -> Self {
        self.nanoseconds = Some(nanoseconds);
        self
    }

    /// Returns the ranges by kind, in the order of their checks: reads of earlier content first.
    pub(crate) fn ranges(&self) -> [AccessedRanges<'_>; 4] {
        [
            AccessedRanges::new(AccessKind::Read, &self.reads),
            AccessedRanges::new(AccessKind::AtomicRead, &self.atomics),
            AccessedRanges::new(AccessKind::Write, &self.writes),
            AccessedRanges::new(AccessKind::AtomicWrite, &self.atomics),
        ]
    }

    /// Returns whether an access is inside of the declared ranges.
    pub(super) fn has(&self, ptr: u64, len: u64, kind: AccessKind) -> bool {
        let within = |ranges| contains(ranges, AddressRange::new(ptr, len));
        match kind {
            AccessKind::Read | AccessKind::ReadBack | AccessKind::WordRead => {
                within(&self.reads) || within(&self.writes)
            }
            AccessKind::Write | AccessKind::WordWrite => within(&self.writes),
            AccessKind::AtomicRead => {
                within(&self.atomics) || within(&self.reads) || within(&self.writes)
            }
            AccessKind::AtomicWrite => within(&self.atomics) || within(&self.writes),
        }
    }
}

/// Returns whether one of the ranges contains this one. An empty range is contained in any.
fn contains(ranges: &[AddressRange], bytes: AddressRange) -> bool {
    bytes.is_empty() || ranges.iter().any(|range| range.holds(bytes))
}
