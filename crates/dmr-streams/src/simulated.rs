//! Reports the blocks of a pool to the simulated driver, through functions that NVIDIA's driver does not
//! have.

use std::ffi::{c_char, c_int};
use std::fmt;
use std::sync::Arc;

use dmr_core::{AllocTag, Generation, MemoryObserver};

use crate::Device;
use crate::library::optional;

impl Device {
    /// Returns the observer that is part of the driver. The simulated driver has one, and reports wrong and
    /// unordered accesses to the blocks that are reported to it, with their tags. NVIDIA's driver has none.
    #[must_use]
    pub fn memory_observer(&self) -> Option<Arc<dyn MemoryObserver>> {
        Some(Arc::new(SimulatedDriver::of(self.ordinal())?))
    }
}

/// The functions of `dmr_sim::driver::carved`. Their results are ignored: they fail only in a universe that
/// has ended, which reports nothing.
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
        // SAFETY: only the simulated driver has functions with these names, and they have these types; the
        // first is called with the address of a 32-bit integer.
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

    /// Returns `true`: it checks work at submission. Queries by a pool would be orders that the program has
    /// not made, and would hide races.
    fn follows_streams(&self) -> bool {
        true
    }
}

impl fmt::Debug for SimulatedDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimulatedDriver")
    }
}
