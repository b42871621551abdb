//! The regions that the observer of a pool sees: one for each block.

use std::collections::HashMap;

use dmr_core::process::LeakedInChild;
use dmr_core::{CaughtObserver, Generation, MemoryObserver};
use dmr_streams::uses::Dependencies;

use crate::arena::ChunkLocation;
use crate::sync::{self, Mutex, MutexGuard};

/// The observer, and the blocks that it sees.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) observer: CaughtObserver,
    /// The value of [`MemoryObserver::follows_streams`]: if `true`, nothing is added to `freed`.
    pub(crate) follows_streams: bool,
    /// The blocks that were reported and are not freed, by address.
    pub(crate) regions: LeakedInChild<Mutex<HashMap<u64, Generation>>>,
    /// Oldest first. While it is locked, neither the driver nor the observer is called.
    pub(crate) freed: LeakedInChild<Mutex<Vec<FreedRegion>>>,
}

/// The region of a block that was freed. The device may still use it.
#[derive(Debug)]
pub(crate) struct FreedRegion {
    pub(crate) location: ChunkLocation,
    /// All work with it.
    pub(crate) after: Dependencies,
    pub(crate) address: u64,
    /// `None` if the region was not reported to the observer.
    pub(crate) generation: Option<Generation>,
}

impl Observed {
    /// Reports a region as freed, if it was reported as allocated.
    pub(crate) fn report_freed(&self, address: u64, generation: Option<Generation>) {
        if let Some(generation) = generation {
            self.observer.region_freed(address, generation);
        }
    }

    pub(crate) fn regions(&self) -> MutexGuard<'_, HashMap<u64, Generation>> {
        sync::lock(&self.regions)
    }

    pub(crate) fn freed_uses(&self) -> Dependencies {
        self.freed().iter().map(|region| &region.after).collect()
    }

    pub(crate) fn freed(&self) -> MutexGuard<'_, Vec<FreedRegion>> {
        sync::lock(&self.freed)
    }
}
