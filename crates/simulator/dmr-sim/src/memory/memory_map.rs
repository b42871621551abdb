//! The owners of addresses: live allocations, mappings, and the rights of devices to both.
//!
//! A machine has two of these. One is the present state: what calls return and what the hardware
//! enforces. The other is part of the shadow: the state after the last operation that was checked,
//! which is older while a launch with a recorded footprint has not run (see `check/log.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::access::{Operation, Origin};
use crate::memory::{
    Mappings, Reach, Rights,
    address::{device_of, is_virtual},
};

/// Live allocations by address, mappings, and the rights to the memory of pools.
#[derive(Default)]
pub(crate) struct MemoryMap {
    allocations: BTreeMap<u64, Allocation>,
    pub(crate) mappings: Mappings,
    pool_access: BTreeMap<(u32, usize), Rights>,
}

/// One live allocation.
#[derive(Clone)]
pub(crate) struct Allocation {
    pub(crate) bytes: u64,
    pub(crate) home: Home,
    /// The operation that uses must come after, if the allocation is stream-ordered.
    pub(crate) made: Option<Operation>,
    pub(crate) origin: Arc<Origin>,
    pub(crate) tag: Option<Arc<str>>,
}

/// The origin of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// `cuMemAlloc` on this device.
    Device(usize),
    /// A memory pool (its index) on this device.
    Pool { device: usize, pool: u32 },
    /// A node of a graph on this device. The address stays the node's when the memory is freed.
    Graph(usize),
    /// Pinned host memory.
    Host,
}

impl Home {
    pub(crate) fn device(self) -> Option<usize> {
        match self {
            Self::Device(device) | Self::Graph(device) | Self::Pool { device, .. } => Some(device),
            Self::Host => None,
        }
    }
}

impl MemoryMap {
    /// Adds an allocation.
    pub(crate) fn insert(&mut self, at: u64, allocation: Allocation) {
        self.allocations.insert(at, allocation);
    }

    /// Removes the allocation at `at`.
    pub(crate) fn remove(&mut self, at: u64) -> Option<Allocation> {
        self.allocations.remove(&at)
    }

    /// Returns the allocation that starts at `at`.
    pub(crate) fn allocation(&self, at: u64) -> Option<&Allocation> {
        self.allocations.get(&at)
    }

    /// Names the allocation at `at` for reports.
    pub(crate) fn name(&mut self, at: u64, tag: Arc<str>) {
        if let Some(allocation) = self.allocations.get_mut(&at) {
            allocation.tag = Some(tag);
        }
    }

    /// Returns the allocation that contains `at`, and its start.
    pub(crate) fn allocation_around(&self, at: u64) -> Option<(u64, &Allocation)> {
        let (&start, allocation) = self.allocations.range(..=at).next_back()?;
        (at - start < allocation.bytes).then_some((start, allocation))
    }

    /// Returns the start of the first allocation behind `at`.
    pub(crate) fn next_start(&self, at: u64) -> Option<u64> {
        self.allocations.range(at.saturating_add(1)..).next().map(|(&start, _)| start)
    }

    /// Returns whether a live allocation has a byte of the range.
    pub(crate) fn overlaps(&self, at: u64, bytes: u64) -> bool {
        let last = self.allocations.range(..at.saturating_add(bytes)).next_back();
        last.is_some_and(|(start, allocation)| start + allocation.bytes > at)
    }

    /// Returns the live allocations, by address.
    pub(crate) fn allocations(&self) -> impl Iterator<Item = (u64, &Allocation)> {
        self.allocations.iter().map(|(&at, allocation)| (at, allocation))
    }

    /// Returns how many of `bytes` bytes at `at` the hardware can access: up to the end of the
    /// allocation or of the mappings there.
    pub(crate) fn reachable(&self, at: u64, bytes: u64, by: Reach<'_>, writes: bool) -> u64 {
        if is_virtual(at) {
            return self.mappings.reachable(at, bytes, by, writes);
        }
        self.allocation_around(at)
            .filter(|(_, allocation)| self.can_reach(allocation.home, by, writes))
            .map_or(0, |(start, allocation)| bytes.min(allocation.bytes - (at - start)))
    }

    /// Returns whether the work can access memory of this origin: memory of `cuMemAlloc` by the
    /// peer access of its context, memory of a pool by the pool's own, and all memory if it is a
    /// copy.
    pub(crate) fn can_reach(&self, home: Home, by: Reach<'_>, writes: bool) -> bool {
        let Some(devices) = by.peers else { return true };
        match home {
            Home::Host => true,
            Home::Device(device) | Home::Graph(device) => devices.contains(&device),
            Home::Pool { device, .. } if device == by.device => true,
            Home::Pool { pool, .. } => self.pool_rights(pool, by.device) >= Rights::needed(writes),
        }
    }

    /// Returns the device that the memory is on, if it is on one.
    pub(crate) fn device_at(&self, at: u64) -> Option<usize> {
        if is_virtual(at) {
            return self.mappings.around(at).map(|(_, mapping)| mapping.device);
        }
        device_of(at)
    }

    /// Returns the right of `device` to the memory of a pool of another device.
    pub(crate) fn pool_rights(&self, pool: u32, device: usize) -> Rights {
        self.pool_access.get(&(pool, device)).copied().unwrap_or(Rights::None)
    }

    /// Sets the right of `device` to the mapping at `at`.
    pub(crate) fn set_rights(&mut self, at: u64, device: usize, rights: Rights) {
        if let Some(mapping) = self.mappings.get_mut(at) {
            mapping.set_rights(device, rights);
        }
    }

    pub(crate) fn set_pool_rights(&mut self, pool: u32, device: usize, rights: Rights) {
        self.pool_access.insert((pool, device), rights);
    }
}
