//! The functions of the simulated driver that NVIDIA's does not have: blocks and declared uses are
//! reported to them.

use std::ffi::{c_char, c_int};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::CUstream;
use dmr_core::{AllocTag, BlockUse, DeviceBlock, Generation, MemoryObserver};

use crate::library::optional;

/// The functions of `dmr_sim::driver::block_reports`. Their results are ignored: they fail only in
/// a universe that has ended, which reports nothing.
pub(crate) struct SimulatedDriver {
    universe: u32,
    heap_created: unsafe extern "C" fn(u32, u64, u64) -> c_int,
    heap_destroyed: unsafe extern "C" fn(u32, u64) -> c_int,
    region_allocated: unsafe extern "C" fn(u32, u64, u64, u64, *const c_char, usize) -> c_int,
    region_freed: unsafe extern "C" fn(u32, u64) -> c_int,
    block_allocated: unsafe extern "C" fn(u32, u64, u64, u64, *const c_char, usize) -> c_int,
    block_given_away: unsafe extern "C" fn(u32, u64) -> c_int,
    declaration_begun:
        unsafe extern "C" fn(u32, CUstream, *const DeclaredUse, usize, *mut u64) -> c_int,
    declaration_ended: unsafe extern "C" fn(u32, u64) -> c_int,
    /// `None` in a simulated driver of an older version.
    finding_of_loss:
        Option<unsafe extern "C" fn(u32, c_int, *mut c_char, usize, *mut usize) -> c_int>,
}

/// `true` once a device of this process is simulated.
pub(crate) static IS_SIMULATED: AtomicBool = AtomicBool::new(false);

/// In place of a stream, for the driver: all streams.
pub(crate) const ALL_STREAMS: CUstream = std::ptr::without_provenance_mut(usize::MAX);

/// The most bytes of a finding in an error. The universe keeps the whole.
const MAX_FINDING: usize = 4096;

/// A use as the driver takes it: an address in the block, the block's number, the first address and
/// the one behind the last (0 and `u64::MAX` for the whole block), and 1 for each kind of access.
#[repr(C)]
pub(crate) struct DeclaredUse {
    pub(crate) ptr: u64,
    pub(crate) number: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) reads: u32,
    pub(crate) writes: u32,
}

impl SimulatedDriver {
    /// Returns the driver, if it is simulated.
    pub(crate) fn of(ordinal: usize) -> Option<Arc<Self>> {
        type UniverseOf = unsafe extern "C" fn(c_int, *mut u32) -> c_int;
        let mut universe = 0;
        // SAFETY: only the simulated driver has functions with these names, and they have these
        // types; the first is called with the address of a 32-bit integer.
        unsafe {
            let universe_of: UniverseOf = optional("dmrSimUniverseOf")?;
            if universe_of(c_int::try_from(ordinal).ok()?, &mut universe) != 0 {
                return None;
            }
            let found = Self {
                universe,
                heap_created: optional("dmrSimHeapCreated")?,
                heap_destroyed: optional("dmrSimHeapDestroyed")?,
                region_allocated: optional("dmrSimNumberedRegionAllocated")?,
                region_freed: optional("dmrSimRegionFreed")?,
                block_allocated: optional("dmrSimBlockAllocated")?,
                block_given_away: optional("dmrSimBlockGivenAway")?,
                declaration_begun: optional("dmrSimDeclarationBegun")?,
                declaration_ended: optional("dmrSimDeclarationEnded")?,
                finding_of_loss: optional("dmrSimFindingOfLoss"),
            };
            IS_SIMULATED.store(true, Ordering::Relaxed);
            Some(Arc::new(found))
        }
    }

    /// Returns the finding about the work by which a device was lost.
    #[cold]
    pub(crate) fn finding_of_loss(&self, ordinal: usize) -> Option<Arc<str>> {
        let function = self.finding_of_loss?;
        let ordinal = c_int::try_from(ordinal).ok()?;
        let mut text = vec![0; MAX_FINDING];
        let mut len = 0;
        // SAFETY: the text can be written up to its length, and the length, during the call.
        let code = unsafe {
            function(self.universe, ordinal, text.as_mut_ptr().cast(), text.len(), &mut len)
        };
        let written = text.get(..len).filter(|text| code == 0 && !text.is_empty())?;
        Some(String::from_utf8_lossy(written).into())
    }

    /// Reports a block that is an allocation of the driver.
    pub(crate) fn block_allocated(&self, block: &DeviceBlock) {
        let bytes = block.bytes() as u64;
        let number = block.generation().get();
        let tag = block.tag().name();
        // SAFETY: the name can be read during the call.
        unsafe {
            let name = tag.as_ptr().cast();
            let len = tag.len();
            (self.block_allocated)(self.universe, block.ptr(), bytes, number, name, len);
        }
    }

    /// Reports that the memory of a block belongs to the program from now on.
    pub(crate) fn block_given_away(&self, ptr: u64) {
        // SAFETY: takes numbers only.
        unsafe { (self.block_given_away)(self.universe, ptr) };
    }

    /// Begins a declaration for the calling thread, on this stream. Returns its id.
    pub(crate) fn begin_declaration(&self, stream: CUstream, uses: Option<&[DeclaredUse]>) -> u64 {
        let mut id = 0;
        let (first, count) = uses.map_or((std::ptr::null(), 0), |uses| (uses.as_ptr(), uses.len()));
        // SAFETY: the uses can be read, and the id written, during the call. A slice has no null
        // address.
        unsafe { (self.declaration_begun)(self.universe, stream, first, count, &mut id) };
        id
    }

    /// Ends a declaration.
    pub(crate) fn end_declaration(&self, id: u64) {
        // SAFETY: takes numbers only.
        unsafe { (self.declaration_ended)(self.universe, id) };
    }
}

impl DeclaredUse {
    pub(crate) fn of(used: &BlockUse) -> Self {
        let block = used.block;
        let bytes = used.bytes;
        Self {
            ptr: block.ptr(),
            number: block.generation().get(),
            start: bytes.start(),
            end: bytes.end(),
            reads: u32::from(used.access.reads()),
            writes: u32::from(used.access.writes()),
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

    fn region_allocated(&self, ptr: u64, bytes: usize, tag: AllocTag, generation: Generation) {
        let tag = tag.name();
        // SAFETY: the name can be read during the call.
        unsafe {
            let name = tag.as_ptr().cast();
            let len = tag.len();
            let bytes = bytes as u64;
            let number = generation.get();
            (self.region_allocated)(self.universe, ptr, bytes, number, name, len);
        }
    }

    fn region_freed(&self, ptr: u64, _: Generation) {
        // SAFETY: takes numbers only.
        unsafe { (self.region_freed)(self.universe, ptr) };
    }

    /// Returns `true`: it checks work at submission. Queries by a pool would be orders that the
    /// program has not made, and would hide races.
    fn follows_streams(&self) -> bool {
        true
    }
}

impl fmt::Debug for SimulatedDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimulatedDriver")
    }
}
