//! Device memory that was freed after a launch was submitted and before it has run.
//!
//! A free counts for calls from the moment of the call, but a launch that was submitted before may
//! still use the memory when it runs.

use crate::access::AddressRange;
use crate::memory::{Allocation, Home};

/// Memory that was freed while launches that may use it wait.
#[derive(Default)]
pub(crate) struct LateFrees(Vec<LateFree>);

/// Freed memory.
#[derive(Clone, Copy)]
pub(crate) struct LateFree {
    pub(crate) range: AddressRange,
    pub(crate) home: Home,
}

impl LateFrees {
    /// Adds the allocation at `at`, unless it is host memory.
    pub(crate) fn add(&mut self, at: u64, allocation: &Allocation) {
        if allocation.home != Home::Host {
            let range = AddressRange::new(at, allocation.bytes);
            self.0.push(LateFree { range, home: allocation.home });
        }
    }

    /// Returns the freed memory that has all of these bytes.
    pub(crate) fn around(&self, bytes: AddressRange) -> Option<LateFree> {
        let holds =
            |freed: &&LateFree| freed.range.holds(bytes) && bytes.start() < freed.range.end();
        self.0.iter().find(holds).copied()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
