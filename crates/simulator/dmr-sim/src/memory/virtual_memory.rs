//! Reserved addresses and physical memory, which mappings connect.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::abi::*;
use crate::access::Origin;
use crate::memory::AddressSpace;

/// The granularity of physical memory and addresses, in bytes.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// The virtual memory of a machine, all its devices together.
pub(crate) struct VirtualMemory {
    pub(crate) addresses: AddressSpace,
    pub(crate) reserved: BTreeMap<u64, Reserved>,
    pub(crate) physical: BTreeMap<u32, Physical>,
    pub(crate) next: u32,
}

/// A range of addresses for mapping.
pub(crate) struct Reserved {
    pub(crate) bytes: u64,
    pub(crate) origin: Arc<Origin>,
}

/// Physical memory of a device.
pub(crate) struct Physical {
    /// The physical address, in the range of the device; programs never get it.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) device: usize,
    pub(crate) properties: CUmemAllocationProp,
    /// The number of references that the program must release.
    pub(crate) references: u32,
    pub(crate) mappings: u32,
    pub(crate) origin: Arc<Origin>,
}

impl Default for VirtualMemory {
    fn default() -> Self {
        let addresses = AddressSpace::virtual_ranges();
        let reserved = BTreeMap::new();
        let physical = BTreeMap::new();
        Self { addresses, reserved, physical, next: 0 }
    }
}

impl VirtualMemory {
    /// Returns the memory, if the program has a reference to it.
    pub(crate) fn held(&mut self, memory: u32) -> Outcome<&mut Physical> {
        let found = self.physical.get_mut(&memory).filter(|memory| memory.references > 0);
        found.ok_or(ERROR_INVALID_VALUE)
    }

    /// Returns whether the range consists of pages of one reserved range.
    pub(crate) fn is_mappable(&self, at: u64, bytes: u64) -> bool {
        let around = self.reserved.range(..=at).next_back();
        let is_reserved = around.is_some_and(|(&start, reserved)| {
            let skipped = at - start;
            skipped < reserved.bytes && bytes <= reserved.bytes - skipped
        });
        is_reserved && is_granular(bytes) && at.is_multiple_of(GRANULARITY)
    }
}

pub(crate) fn is_granular(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULARITY)
}
