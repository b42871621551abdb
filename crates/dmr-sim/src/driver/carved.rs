//! Reports of the blocks of pools: functions that NVIDIA's driver does not have.
//!
//! A library that finds them in the driver reports the blocks of its pools, without depending on
//! this crate. They concern no device, so they are not counted as calls, and planted faults do not affect
//! them. A change of their meaning or types needs other names.

use std::ffi::{c_char, c_int};

use super::{chapter, put};
use crate::abi::*;
use crate::callback;
use crate::fork::is_forked_child;
use crate::registry;
use crate::session::{Inside, Session};

chapter![
    dmrSimUniverseOf,
    dmrSimHeapCreated,
    dmrSimHeapDestroyed,
    dmrSimRegionAllocated,
    dmrSimRegionFreed,
];

/// Returns the id of the universe of a CUDA ordinal, for the other functions. An ordinal can become
/// another universe's, an id does not.
unsafe extern "C" fn dmrSimUniverseOf(device: c_int, universe: *mut u32) -> Code {
    if is_forked_child() {
        return ERROR_NOT_INITIALIZED;
    }
    let found = registry::universe_of_ordinal(device);
    // SAFETY: null or writable, as the caller promises.
    found.and_then(|found| unsafe { put(universe, found.id) }).err().unwrap_or(SUCCESS)
}

extern "C" fn dmrSimHeapCreated(universe: u32, ptr: u64, bytes: u64) -> Code {
    tell(universe, |session| session.heap_created(ptr, bytes))
}

extern "C" fn dmrSimHeapDestroyed(universe: u32, ptr: u64) -> Code {
    tell(universe, |session| session.heap_destroyed(ptr))
}

/// Reports a region. `tag` is `tag_len` bytes of UTF-8.
unsafe extern "C" fn dmrSimRegionAllocated(
    universe: u32,
    ptr: u64,
    bytes: u64,
    tag: *const c_char,
    tag_len: usize,
) -> Code {
    let tag = match tag_len {
        0 => &[],
        // SAFETY: that number of bytes can be read there, as the caller promises.
        _ => unsafe { std::slice::from_raw_parts(tag.cast::<u8>(), tag_len) },
    };
    let tag = String::from_utf8_lossy(tag);
    tell(universe, |session| session.region_allocated(ptr, bytes, &tag))
}

extern "C" fn dmrSimRegionFreed(universe: u32, ptr: u64) -> Code {
    tell(universe, |session| session.region_freed(ptr))
}

fn tell(universe: u32, what: impl FnOnce(&mut Session<'_>)) -> Code {
    if is_forked_child() {
        return ERROR_NOT_INITIALIZED;
    }
    if callback::is_running() {
        return ERROR_NOT_PERMITTED;
    }
    let _inside = Inside::enter();
    match registry::universe(universe) {
        Ok(shared) => {
            what(&mut shared.session());
            SUCCESS
        }
        Err(code) => code,
    }
}

impl Session<'_> {
    /// Adds a heap of a pool.
    pub(crate) fn heap_created(&mut self, ptr: u64, bytes: u64) {
        self.check(move |machine| machine.shadow.heap_created(ptr, bytes));
    }

    /// Removes a heap of a pool.
    pub(crate) fn heap_destroyed(&mut self, ptr: u64) {
        self.check(move |machine| machine.shadow.heap_destroyed(ptr));
    }

    /// Adds a region of a pool.
    pub(crate) fn region_allocated(&mut self, ptr: u64, bytes: u64, tag: &str) {
        let tag = (!tag.is_empty()).then(|| tag.into());
        let by = self.site("allocation of a pool's region");
        self.check(move |machine| {
            machine.shadow.region_allocated(ptr, bytes, tag, by, &mut machine.findings);
        });
    }

    /// Removes a region of a pool.
    pub(crate) fn region_freed(&mut self, ptr: u64) {
        let by = self.site("free of a pool's region");
        let clock = self.clock_of_all_threads();
        self.check_after(clock, move |shadow, before, out| {
            shadow.region_freed(ptr, by, before, out);
        });
    }
}
