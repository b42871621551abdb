//! Pinned host memory: allocated by the simulator, or registered by the program.

use std::alloc::Layout;

use crate::abi::*;
use crate::access::AddressRange;
use crate::machine::{HostAllocation, Machine, Session};
use crate::memory::{Allocation, Home, address};

/// The alignment of pinned memory: a page.
const PAGE: usize = 4096;

impl Machine {
    /// Returns whether the byte is in pinned memory.
    pub(crate) fn is_pinned(&self, at: u64) -> bool {
        let around = self.memory.present.allocation_around(at);
        around.is_some_and(|(_, allocation)| allocation.home == Home::Host)
    }

    /// Returns whether the byte is in memory that the program has registered, and not the first of
    /// it.
    pub(crate) fn is_inside_registered(&self, at: u64) -> bool {
        let around = self.memory.present.allocation_around(at);
        around.is_some_and(|(start, allocation)| {
            start != at && allocation.home == Home::Host && !self.pinned.contains_key(&start)
        })
    }

    /// Pins host memory: the simulator's own, or the program's.
    fn pin(&mut self, at: u64, bytes: u64) {
        let origin = self.origin("allocate");
        let home = Home::Host;
        self.add_allocation(at, Allocation { bytes, home, made: None, origin, tag: None });
    }

    /// `cuMemHostRegister`.
    pub(crate) fn register(&mut self, at: u64, bytes: u64) -> Outcome {
        if at == 0 || bytes == 0 || !address::is_host_range(at, bytes) || !is_mapped(at, bytes) {
            return Err(ERROR_INVALID_VALUE);
        }
        if self.memory.present.overlaps(at, bytes) {
            return Err(ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.pin(at, bytes);
        Ok(())
    }

    /// `cuMemHostAlloc`. Memory that is not freed stays allocated when the universe ends, because
    /// the program may still have pointers to it.
    pub(crate) fn allocate_pinned(&mut self, bytes: usize, flags: u32) -> Outcome<u64> {
        let layout = pinned_layout(bytes)?;
        // SAFETY: the layout is not of size 0.
        let at = unsafe { std::alloc::alloc_zeroed(layout) } as u64;
        if at == 0 {
            return Err(ERROR_OUT_OF_MEMORY);
        }
        self.pin(at, bytes as u64);
        self.pinned.insert(at, HostAllocation { bytes, flags });
        Ok(at)
    }

    /// Returns the flags of the `cuMemHostAlloc` that has allocated the byte.
    pub(crate) fn host_flags(&self, at: u64) -> Outcome<u32> {
        let start = self.memory.present.allocation_around(at).map(|(start, _)| start);
        let pinned = start.and_then(|start| self.pinned.get(&start));
        pinned.map(|pinned| pinned.flags).ok_or(ERROR_INVALID_VALUE)
    }
}

impl Session<'_> {
    /// `cuMemFreeHost` and `cuMemHostUnregister`. All work runs first, so that no work uses
    /// the memory any more; but the program must have ordered the free itself.
    pub(crate) fn unpin(&mut self, at: u64, registered: bool) -> Outcome {
        self.pinned_block(at, registered)?;
        let clock = self.host.of_this_thread();
        self.run_all();
        self.pinned_block(at, registered)?; // another thread may have freed it meanwhile
        let by = self.site("free");
        let machine = &mut **self;
        let freed = machine.remove_allocation(at, by, clock);
        let bytes = freed.map_or(0, |freed| freed.bytes);
        machine
            .check(move |machine| machine.checks.shadow.clear_freed(AddressRange::new(at, bytes)));
        if let Some(HostAllocation { bytes, .. }) = machine.pinned.remove(&at) {
            release_pinned(at, bytes);
        }
        Ok(())
    }

    /// Returns an error unless pinned memory of this origin starts at the address.
    fn pinned_block(&self, at: u64, registered: bool) -> Outcome {
        let is_pinned = self.memory.present.allocation(at).is_some_and(|a| a.home == Home::Host);
        let is_ours = self.pinned.contains_key(&at);
        if is_pinned && is_ours != registered { Ok(()) } else { Err(ERROR_INVALID_VALUE) }
    }
}

fn pinned_layout(bytes: usize) -> Outcome<Layout> {
    if bytes == 0 {
        return Err(ERROR_INVALID_VALUE);
    }
    Layout::from_size_align(bytes, PAGE).map_err(|_| ERROR_OUT_OF_MEMORY)
}

fn release_pinned(at: u64, bytes: usize) {
    if let Ok(layout) = pinned_layout(bytes) {
        // SAFETY: `allocate_pinned` has made it with this layout, and its entry in `pinned` was
        // removed, so this happens once. No operation is left that uses it: all have run.
        unsafe { std::alloc::dealloc(at as usize as *mut u8, layout) };
    }
}

/// Returns whether the process has memory at all of these addresses.
fn is_mapped(at: u64, bytes: u64) -> bool {
    // SAFETY: it reads no memory and, with this flag, Linux starts no work; it fails where no
    // memory is mapped.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let from = at - at % page;
    // SAFETY: as above.
    unsafe { libc::msync(from as *mut _, (bytes + at - from) as usize, libc::MS_ASYNC) == 0 }
}
