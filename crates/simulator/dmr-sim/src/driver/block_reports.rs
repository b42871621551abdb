//! Reports of the blocks of pools: functions that NVIDIA's driver does not have.
//!
//! A library that finds them in the driver reports the blocks of its pools, without depending on
//! this crate. They concern no device, so they are not counted as calls, and planted faults do not
//! affect them. A change of their meaning or types needs other names.

use std::ffi::{c_char, c_int};

use super::{chapter, put};
use crate::abi::*;
use crate::access::{AddressRange, DeclaredUse};
use crate::check::LibraryBlock;
use crate::host::{callback, fork::is_forked_child};
use crate::machine::{Inside, Session, registry};

chapter![
    dmrSimUniverseOf,
    dmrSimHeapCreated,
    dmrSimHeapDestroyed,
    dmrSimNumberedRegionAllocated,
    dmrSimRegionFreed,
    dmrSimBlockAllocated,
    dmrSimBlockGivenAway,
    dmrSimDeclarationBegun,
    dmrSimDeclarationEnded,
    dmrSimFindingOfLoss,
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

/// Reports a region, with its number in messages or 0. `tag` is `tag_len` bytes of UTF-8.
unsafe extern "C" fn dmrSimNumberedRegionAllocated(
    universe: u32,
    ptr: u64,
    bytes: u64,
    number: u64,
    tag: *const c_char,
    tag_len: usize,
) -> Code {
    tell(universe, |session| {
        // SAFETY: the caller's promise.
        let tag = unsafe { text(tag, tag_len) };
        session.region_allocated(ptr, bytes, number, &tag);
    })
}

/// Reports a block of a library that is an allocation of the driver, and no region of a pool.
unsafe extern "C" fn dmrSimBlockAllocated(
    universe: u32,
    ptr: u64,
    bytes: u64,
    number: u64,
    tag: *const c_char,
    tag_len: usize,
) -> Code {
    tell(universe, |session| {
        // SAFETY: the caller's promise.
        let tag = unsafe { text(tag, tag_len) };
        session.block_allocated(ptr, bytes, number, &tag);
    })
}

/// Reports that the memory of a block belongs to the program from now on.
extern "C" fn dmrSimBlockGivenAway(universe: u32, ptr: u64) -> Code {
    tell(universe, |session| {
        session.check(move |machine| machine.checks.shadow.block_given_away(ptr))
    })
}

/// In place of a stream: all streams.
const ALL_STREAMS: Handle = Handle::MAX;

/// Begins a declaration for the calling thread: of the launches whose work it submits until the
/// declaration ends, to `stream` or, if that is [`ALL_STREAMS`], to any. If `uses` is null, the
/// work may access anything. Writes the id of the declaration.
unsafe extern "C" fn dmrSimDeclarationBegun(
    universe: u32,
    stream: Handle,
    uses: *const DeclaredUse,
    count: usize,
    id: *mut u64,
) -> Code {
    tell(universe, |session| {
        let uses = (!uses.is_null()).then(|| {
            // SAFETY: that number of uses can be read there, as the caller promises.
            unsafe { std::slice::from_raw_parts(uses, count) }.to_vec()
        });
        let only = (stream != ALL_STREAMS).then(|| session.stream(stream));
        // A stream that the universe does not have, or that is lost, gets no work.
        if let Ok(only) = only.transpose() {
            // SAFETY: null or writable, as the caller promises.
            let _ = unsafe { put(id, session.begin_declaration(only, uses)) };
        }
    })
}

extern "C" fn dmrSimDeclarationEnded(universe: u32, id: u64) -> Code {
    tell(universe, |session| session.declarations.end(id))
}

/// Writes the findings about the work by which a device was lost to `text`, as UTF-8, and the
/// number of bytes written to `len`: at most `capacity`, and 0 without a finding. The program has
/// not read them by that.
unsafe extern "C" fn dmrSimFindingOfLoss(
    universe: u32,
    device: c_int,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Code {
    tell(universe, |session| {
        let found = session.findings_of_loss(device);
        let bytes = found.len().min(capacity);
        if !text.is_null() {
            // SAFETY: `capacity` bytes can be written there, as the caller promises.
            unsafe { text.cast::<u8>().copy_from_nonoverlapping(found.as_ptr(), bytes) };
            // SAFETY: null or writable, as the caller promises.
            let _ = unsafe { put(len, bytes) };
        }
    })
}

/// Returns a text of a caller.
///
/// # Safety
///
/// `len` bytes can be read at `text`.
unsafe fn text(text: *const c_char, len: usize) -> String {
    let bytes = match len {
        0 => &[],
        // SAFETY: by this function's contract.
        _ => unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) },
    };
    String::from_utf8_lossy(bytes).into_owned()
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
        self.check(move |machine| machine.checks.shadow.heap_created(ptr, bytes));
    }

    /// Removes a heap of a pool.
    pub(crate) fn heap_destroyed(&mut self, ptr: u64) {
        self.check(move |machine| machine.checks.shadow.heap_destroyed(ptr));
    }

    /// Adds a region of a pool.
    pub(crate) fn region_allocated(&mut self, ptr: u64, bytes: u64, number: u64, tag: &str) {
        let block = self.library_block(ptr, bytes, number, tag);
        let by = self.site("allocation of a pool's region");
        self.check(move |machine| {
            let shadow = &mut machine.checks.shadow;
            let findings = &mut machine.checks.findings;
            shadow.region_allocated(block, by, findings);
        });
    }

    /// Adds a block of a library that is no region of a pool.
    fn block_allocated(&mut self, ptr: u64, bytes: u64, number: u64, tag: &str) {
        let block = self.library_block(ptr, bytes, number, tag);
        self.check(move |machine| machine.checks.shadow.block_allocated(block));
    }

    /// Returns a block of a library as it is reported. An empty tag is none.
    fn library_block(&self, start: u64, bytes: u64, number: u64, tag: &str) -> LibraryBlock {
        let range = AddressRange::between(start, start.saturating_add(bytes));
        let tag = (!tag.is_empty()).then(|| tag.into());
        LibraryBlock { range, number, during: self.declarations.id(), tag }
    }

    /// Returns the findings about the work by which a device was lost, one a line; none if a test
    /// has lost it.
    fn findings_of_loss(&mut self, device: CUdevice) -> String {
        self.run_checks();
        let Ok(device) = self.device_index(device) else { return String::new() };
        let Some(epoch) = self.devices[device].lost_by else { return String::new() };
        let stream = Some(epoch.stream);
        let op = epoch.seq;
        let found = self.checks.findings.verdict.reports.iter().filter(|report| {
            (report.second.stream, report.second.op) == (stream, op) && !report.kind.is_race()
        });
        found.map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    /// Removes a region of a pool.
    pub(crate) fn region_freed(&mut self, ptr: u64) {
        let by = self.site("free of a pool's region");
        let clock = self.host.of_all_threads();
        self.check_after(clock, move |shadow, before, out| {
            shadow.region_freed(ptr, by, before, out);
        });
    }
}
