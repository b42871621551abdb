//! Tells the simulated driver of the blocks of a pool, through functions that it has and NVIDIA's
//! driver has not.

use std::ffi::{c_char, c_int};
use std::fmt;
use std::sync::Arc;

use dmr_core::{AllocTag, Generation, MemoryObserver};

use crate::Device;
use crate::library::optional;

impl Device {
    /// Returns the observer that the driver brings: the simulated driver has one, and reports what is
    /// done to the blocks that it is told of, with their tags. NVIDIA's driver has none.
    #[must_use]
    pub fn memory_observer(&self) -> Option<Arc<dyn MemoryObserver>> {
        Some(Arc::new(SimulatedDriver::of(self.ordinal())?))
    }
}

/// The functions of `dmr_sim::driver::carved`. What they return is of no use: a universe that has
/// ended has nothing to report any more.
struct SimulatedDriver {
    universe: u32,
    heap_created: unsafe extern "C" fn(u32, u64, u64) -> c_int,
    heap_destroyed: unsafe extern "C" fn(u32, u64) -> c_int,
    region_allocated: unsafe extern "C" fn(u32, u64, u64, *const c_char, usize) -> c_int,
    region_freed: unsafe extern "C" fn(u32, u64) -> c_int,
}

impl SimulatedDriver {
    fn of(ordinal: usize) -> Option<Self> {
        type UniverseOf = unsafe extern "C" fn(c_int, *mut u32) -> c_int;
        let mut universe = 0;
        // SAFETY: these names are the simulated driver's alone; the types are those that it gives
        // them; the first is called with the address of a 32-bit integer.
        unsafe {
            let universe_of: UniverseOf = optional("dmrSimUniverseOf")?;
            if universe_of(c_int::try_from(ordinal).ok()?, &mut universe) != 0 {
                return None;
            }
            Some(Self {
                universe,
                heap_created: optional("dmrSimHeapCreated")?,
                heap_destroyed: optional("dmrSimHeapDestroyed")?,
                region_allocated: optional("dmrSimRegionAllocated")?,
                region_freed: optional("dmrSimRegionFreed")?,
            })
        }
    }
}

impl MemoryObserver for SimulatedDriver {
    fn heap_created(&self, ptr: u64, bytes: usize) {
        // SAFETY: takes numbers only.
        unsafe { (self.heap_created)(self.universe, ptr, bytes as u64) };
    }

    fn heap_destroyed(&self, ptr: u64) {
        // SAFETY: takes numbers only.
        unsafe { (self.heap_destroyed)(self.universe, ptr) };
    }

    fn region_allocated(&self, ptr: u64, bytes: usize, tag: AllocTag, _: Generation) {
        let tag = tag.name();
        // SAFETY: the name can be read during the call.
        unsafe {
            let (name, len) = (tag.as_ptr().cast(), tag.len());
            (self.region_allocated)(self.universe, ptr, bytes as u64, name, len);
        }
    }

    fn region_freed(&self, ptr: u64, _: Generation) {
        // SAFETY: takes numbers only.
        unsafe { (self.region_freed)(self.universe, ptr) };
    }

    /// It checks work when that is submitted. A pool that asked what is done would teach it orders
    /// that the program has not made, and so hide races.
    fn follows_streams(&self) -> bool {
        true
    }
}

impl fmt::Debug for SimulatedDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimulatedDriver")
    }
}
