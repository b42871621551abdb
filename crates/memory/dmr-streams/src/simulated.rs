//! Reports blocks, and what launches declare, to the simulated driver, through functions that
//! NVIDIA's driver does not have.

use std::ffi::{c_char, c_int};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::CUstream;
use dmr_core::{AllocTag, BlockUse, DeviceBlock, Generation, MemoryObserver};
use smallvec::SmallVec;

use crate::library::optional;
use crate::{Device, StreamGuard};

impl Device {
    /// Returns the observer that is part of the driver. The simulated driver has one, and reports
    /// wrong and unordered accesses to the blocks that are reported to it, with their tags.
    /// NVIDIA's driver has none.
    #[must_use]
    pub fn memory_observer(&self) -> Option<Arc<dyn MemoryObserver>> {
        Some(Arc::clone(self.simulated()?) as Arc<dyn MemoryObserver>)
    }
}

/// The functions of `dmr_sim::driver::carved`. Their results are ignored: they fail only in a
/// universe that has ended, which reports nothing.
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
static IS_SIMULATED: AtomicBool = AtomicBool::new(false);

/// In place of a stream, for the driver: all streams.
const ALL_STREAMS: CUstream = std::ptr::without_provenance_mut(usize::MAX);

/// The most bytes of a finding in an error. The universe keeps the whole.
const MAX_FINDING: usize = 4096;

/// A use as the driver takes it: an address in the block, the block's number, the first address and
/// the one behind the last (0 and `u64::MAX` for the whole block), and 1 for each kind of access.
#[repr(C)]
struct DeclaredUse {
    ptr: u64,
    number: u64,
    start: u64,
    end: u64,
    reads: u32,
    writes: u32,
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

    /// Begins a declaration for the calling thread, on this stream.
    fn declare(self: &Arc<Self>, stream: CUstream, uses: Option<&[DeclaredUse]>) -> Declaration {
        let mut id = 0;
        let (first, count) = uses.map_or((std::ptr::null(), 0), |uses| (uses.as_ptr(), uses.len()));
        // SAFETY: the uses can be read, and the id written, during the call. A slice has no null
        // address.
        unsafe { (self.declaration_begun)(self.universe, stream, first, count, &mut id) };
        Declaration { driver: Arc::clone(self), id }
    }
}

/// A declaration in force, until this is dropped. The simulated driver compares with it what the
/// thread that has made it submits.
#[derive(Debug)]
#[must_use = "it ends when this is dropped"]
pub struct Declaration {
    driver: Arc<SimulatedDriver>,
    id: u64,
}

impl Declaration {
    /// Declares that the work of a launch, which the calling thread submits, accesses memory as
    /// `uses` says and no other memory of blocks, until the returned value is dropped: on this
    /// stream or, without one, on all. Without `uses` the work may access anything. A declaration
    /// for all streams replaces the earlier ones while it is in force; one for a stream adds to
    /// them.
    ///
    /// `None` unless the device is simulated: NVIDIA's driver compares nothing.
    pub fn begin<'u>(
        device: &Device,
        stream: Option<&StreamGuard<'_>>,
        uses: Option<impl IntoIterator<Item = &'u BlockUse>>,
    ) -> Option<Self> {
        let driver = device.simulated()?;
        let uses = uses.map(|uses| {
            uses.into_iter().map(DeclaredUse::of).collect::<SmallVec<[DeclaredUse; 8]>>()
        });
        let stream = stream.map_or(ALL_STREAMS, |stream| stream.stream().cu_stream());
        Some(driver.declare(stream, uses.as_deref()))
    }

    /// Declares as [`begin`](Self::begin) does for all streams, and that the work reads and writes
    /// `bytes` bytes of host memory at `host`, which may be pinned.
    pub fn begin_with_host<'u>(
        device: &Device,
        uses: impl IntoIterator<Item = &'u BlockUse>,
        host: u64,
        bytes: usize,
    ) -> Option<Self> {
        let driver = device.simulated()?;
        let mut declared: SmallVec<[DeclaredUse; 8]> =
            uses.into_iter().map(DeclaredUse::of).collect();
        let end = host.saturating_add(bytes as u64).min(u64::MAX - 1);
        declared.push(DeclaredUse { ptr: host, number: 0, start: host, end, reads: 1, writes: 1 });
        Some(driver.declare(ALL_STREAMS, Some(&declared)))
    }

    /// Allows the calling thread's work to access anything until the returned value is dropped.
    pub(crate) fn of_anything(device: &Device) -> Option<Self> {
        Self::begin(device, None, None::<[&BlockUse; 0]>)
    }

    /// Returns whether a device of this process is simulated, so that declarations are compared.
    #[must_use]
    #[inline]
    pub fn is_compared() -> bool {
        IS_SIMULATED.load(Ordering::Relaxed)
    }
}

impl Drop for Declaration {
    fn drop(&mut self) {
        // SAFETY: takes numbers only.
        unsafe { (self.driver.declaration_ended)(self.driver.universe, self.id) };
    }
}

impl DeclaredUse {
    fn of(used: &BlockUse) -> Self {
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
