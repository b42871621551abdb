//! Kernels as closures: the arguments of a launch, its footprint, its body.

use std::fmt;
use std::sync::Arc;

use dmr_ptx::Program;

use crate::abi::{Code, ERROR_ILLEGAL_ADDRESS};
use crate::access::origin::AccessKind;
use crate::access::range::{AccessedRanges, AddressRange};
use crate::access::site::KernelSite;
use crate::kernel::recorder::Recorder;
use crate::kernel::recording::Recording;
use crate::memory::bytes::Memory;
use crate::memory::late_frees::LateFrees;
use crate::memory::mapping::Reach;
use crate::memory::memory_map::MemoryMap;

/// The arguments of one launch, by parameter index.
#[derive(Clone, Debug)]
pub struct KernelArgs {
    params: Vec<Box<[u8]>>,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    cluster: Option<[u32; 3]>,
    is_cooperative: bool,
}

impl KernelArgs {
    pub(crate) fn new(params: Vec<Box<[u8]>>, grid: [u32; 3], block: [u32; 3]) -> Self {
        Self { params, grid, block, shared_bytes: 0, cluster: None, is_cooperative: false }
    }

    pub(crate) fn with_shared_bytes(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }

    pub(crate) fn with_cluster(self, cluster: Option<[u32; 3]>) -> Self {
        Self { cluster, ..self }
    }

    pub(crate) fn with_cooperation(self, is_cooperative: bool) -> Self {
        Self { is_cooperative, ..self }
    }

    /// Returns the bytes of a parameter; empty if there is none.
    #[must_use]
    pub fn bytes(&self, index: usize) -> &[u8] {
        self.params.get(index).map_or(&[], |param| param)
    }

    /// Returns a 64-bit parameter: pointers and `size_t`. 0 if it is shorter.
    #[must_use]
    pub fn u64(&self, index: usize) -> u64 {
        u64::from_le_bytes(self.head(index))
    }

    /// Returns a 32-bit parameter.
    #[must_use]
    pub fn u32(&self, index: usize) -> u32 {
        u32::from_le_bytes(self.head(index))
    }

    /// Returns a signed 32-bit parameter.
    #[must_use]
    pub fn i32(&self, index: usize) -> i32 {
        i32::from_le_bytes(self.head(index))
    }

    /// Returns a 32-bit float parameter.
    #[must_use]
    pub fn f32(&self, index: usize) -> f32 {
        f32::from_le_bytes(self.head(index))
    }

    /// Returns a 64-bit float parameter.
    #[must_use]
    pub fn f64(&self, index: usize) -> f64 {
        f64::from_le_bytes(self.head(index))
    }

    /// Returns the dimensions of the grid, in blocks.
    #[must_use]
    pub const fn grid(&self) -> [u32; 3] {
        self.grid
    }

    /// Returns the dimensions of a block, in threads.
    #[must_use]
    pub const fn block(&self) -> [u32; 3] {
        self.block
    }

    /// Returns the dynamic shared memory of a block, in bytes.
    #[must_use]
    pub const fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// Returns the dimensions of a cluster, in blocks, if the launch has them.
    #[must_use]
    pub const fn cluster(&self) -> Option<[u32; 3]> {
        self.cluster
    }

    /// Returns whether the launch is cooperative: its blocks can synchronise as a grid.
    #[must_use]
    pub const fn is_cooperative(&self) -> bool {
        self.is_cooperative
    }

    fn head<const N: usize>(&self, index: usize) -> [u8; N] {
        self.bytes(index).first_chunk().copied().unwrap_or([0; N])
    }
}

/// The memory that a launch accesses: declared when it is submitted and enforced when it runs, or
/// recorded when it runs.
#[derive(Clone, Debug, Default)]
pub struct Footprint {
    pub(crate) reads: Vec<AddressRange>,
    pub(crate) writes: Vec<AddressRange>,
    pub(crate) atomics: Vec<AddressRange>,
    pub(crate) is_recorded: bool,
    pub(crate) nanoseconds: Option<u64>,
}

impl Footprint {
    /// Makes a footprint without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the footprint of a launch that may access any memory: what its body touches is
    /// recorded when it runs, to the byte.
    ///
    /// The launch is checked as if it had declared these bytes when it was submitted. Checks of
    /// work submitted later wait until it has run. An access outside of all live memory is a
    /// finding, and does nothing.
    #[must_use]
    pub fn recorded() -> Self {
        Self { is_recorded: true, ..Self::default() }
    }

    /// Adds a read of `len` bytes at `ptr`.
    #[must_use]
    pub fn reads(mut self, ptr: u64, len: u64) -> Self {
        self.reads.push(AddressRange::new(ptr, len));
        self
    }

    /// Adds a write of `len` bytes at `ptr`. The kernel may read them back once they are written;
    /// declare a read as well if it needs the old bytes.
    #[must_use]
    pub fn writes(mut self, ptr: u64, len: u64) -> Self {
        self.writes.push(AddressRange::new(ptr, len));
        self
    }

    /// Adds `len` bytes at `ptr` that the kernel reads and writes by atomic operations only. Atomic
    /// operations of two launches do not race with each other; an atomic operation and a plain
    /// access do.
    #[must_use]
    pub fn atomics(mut self, ptr: u64, len: u64) -> Self {
        self.atomics.push(AddressRange::new(ptr, len));
        self
    }

    /// Sets the duration on the virtual clock that `cuEventElapsedTime` reads.
    #[must_use]
    pub fn takes(mut self, nanoseconds: u64) -> Self {
        self.nanoseconds = Some(nanoseconds);
        self
    }

    /// Returns the ranges by kind, in the order of their checks: reads of earlier content first.
    pub(crate) fn ranges(&self) -> [AccessedRanges<'_>; 4] {
        [
            AccessedRanges::new(AccessKind::Read, &self.reads),
            AccessedRanges::new(AccessKind::AtomicRead, &self.atomics),
            AccessedRanges::new(AccessKind::Write, &self.writes),
            AccessedRanges::new(AccessKind::AtomicWrite, &self.atomics),
        ]
    }
}

/// The memory of a kernel body: the declared footprint of its launch and nothing else, or all
/// memory that the device can access.
pub struct KernelMemory<'a> {
    memory: Memory<'a>,
    access: Permitted<'a>,
}

/// The memory that a body may access.
enum Permitted<'a> {
    Declared {
        declared: &'a Footprint,
        /// The accessible part of the footprint. The rest was reported at submission, and accesses
        /// there do nothing.
        reachable: &'a Footprint,
        /// Accesses outside the footprint: address and bytes.
        outside: Vec<AddressRange>,
    },
    Recorded(Box<Recorder<'a>>),
}

impl<'a> KernelMemory<'a> {
    pub(crate) fn declared(
        memory: Memory<'a>,
        declared: &'a Footprint,
        reachable: &'a Footprint,
    ) -> Self {
        let access = Permitted::Declared { declared, reachable, outside: Vec::new() };
        Self { memory, access }
    }

    pub(crate) fn recorded(
        memory: Memory<'a>,
        present: &'a MemoryMap,
        freed: &'a LateFrees,
        by: Reach<'a>,
    ) -> Self {
        Self { memory, access: Permitted::Recorded(Box::new(Recorder::new(present, freed, by))) }
    }

    /// Sets the place in the kernel of the accesses from now on; a finding about one of them has
    /// it. Ignored if the footprint was declared.
    pub fn at(&mut self, site: KernelSite) {
        if let Permitted::Recorded(recorder) = &mut self.access {
            recorder.site = Some(site);
            recorder.lane_bytes = 0;
        }
    }

    /// Sets the place of the next access: of lanes with `lane_bytes` each, the first of them at
    /// `site`.
    pub(crate) fn at_lanes(&mut self, site: KernelSite, lane_bytes: u32) {
        if let Permitted::Recorded(recorder) = &mut self.access {
            recorder.site = Some(site);
            recorder.lane_bytes = lane_bytes;
        }
    }

    /// Sets the time that the launch takes beside its start, in nanoseconds.
    pub(crate) fn takes(&mut self, nanoseconds: u64) {
        if let Permitted::Recorded(recorder) = &mut self.access {
            recorder.recording.nanoseconds = nanoseconds;
        }
    }

    /// Makes the lines of places instructions of a program.
    pub(crate) fn set_places(&mut self, program: &Arc<Program>) {
        if let Permitted::Recorded(recorder) = &mut self.access {
            recorder.recording.sites.program = Some(Arc::clone(program));
        }
    }

    /// Records that bytes which were just written have undefined values.
    pub(crate) fn undefine(&mut self, ptr: u64, bytes: u64) {
        if let Permitted::Recorded(recorder) = &mut self.access
            && recorder.reaches(ptr, bytes, true)
        {
            recorder.recording.undefine(ptr, ptr.saturating_add(bytes));
        }
    }

    /// Reports a fault of the kernel.
    pub(crate) fn report_fault(&mut self, message: String) {
        if let Permitted::Recorded(recorder) = &mut self.access {
            recorder.recording.faults.push(message);
        }
    }

    /// Makes the device fault with a sticky error. An access that was refused is a finding already.
    pub(crate) fn fault_by(&mut self, code: Code, message: String) {
        if let Permitted::Recorded(recorder) = &mut self.access
            && recorder.fault.is_none()
        {
            recorder.fault = Some(code);
            recorder.recording.faults.push(message);
        }
    }

    /// Reads the bytes at `ptr`.
    pub fn read(&mut self, ptr: u64, into: &mut [u8]) {
        self.try_read(ptr, into);
    }

    /// Overwrites the bytes at `ptr`.
    pub fn write(&mut self, ptr: u64, bytes: &[u8]) {
        self.try_write(ptr, bytes);
    }

    /// Reads the bytes at `ptr`. Returns whether the kernel can access them; if not, `into` is
    /// unchanged.
    pub fn try_read(&mut self, ptr: u64, into: &mut [u8]) -> bool {
        let may = self.permits(ptr, into.len() as u64, AccessKind::Read);
        if may {
            self.memory.read(ptr, into);
        }
        may
    }

    /// Overwrites the bytes at `ptr`. Returns whether the kernel can access them; if not, nothing
    /// happens.
    pub fn try_write(&mut self, ptr: u64, bytes: &[u8]) -> bool {
        let may = self.permits(ptr, bytes.len() as u64, AccessKind::Write);
        if may {
            self.memory.write(ptr, bytes);
        }
        may
    }

    /// Reads the bytes at `ptr` by an atomic operation, which does not race with other atomic
    /// operations. Returns as [`try_read`](Self::try_read) does.
    pub fn read_atomic(&mut self, ptr: u64, into: &mut [u8]) -> bool {
        let may = self.permits(ptr, into.len() as u64, AccessKind::AtomicRead);
        if may {
            self.memory.read(ptr, into);
        }
        may
    }

    /// Overwrites the bytes at `ptr` by an atomic operation. Returns as
    /// [`try_write`](Self::try_write) does.
    pub fn write_atomic(&mut self, ptr: u64, bytes: &[u8]) -> bool {
        let may = self.permits(ptr, bytes.len() as u64, AccessKind::AtomicWrite);
        if may {
            self.memory.write(ptr, bytes);
        }
        may
    }

    /// Reads the bytes at `ptr` into `value`, lets `change` change them, and writes them back, as
    /// one atomic operation. `value` has the old bytes afterwards. Returns as
    /// [`try_read`](Self::try_read) does.
    pub fn update(&mut self, ptr: u64, value: &mut [u8], change: impl FnOnce(&mut [u8])) -> bool {
        let mut change = Some(change);
        self.change(ptr, value.len(), &mut |bytes| {
            value.copy_from_slice(bytes);
            if let Some(change) = change.take() {
                change(bytes);
            }
        })
    }

    /// Lets `change` change `len` bytes at `ptr`, as one atomic operation. Returns as
    /// [`try_read`](Self::try_read) does.
    pub(crate) fn change(
        &mut self,
        ptr: u64,
        len: usize,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        let bytes = len as u64;
        let has_changed = match &mut self.access {
            Permitted::Recorded(recorder) => recorder.has_changed(ptr, bytes),
            Permitted::Declared { .. } => false,
        };
        if !has_changed {
            let may_read = self.permits(ptr, bytes, AccessKind::AtomicRead);
            if !self.permits(ptr, bytes, AccessKind::AtomicWrite) || !may_read {
                return false;
            }
        }
        self.memory.update(ptr, len, change);
        true
    }

    /// Overwrites `len` bytes at `ptr` with `byte`.
    pub fn fill(&mut self, ptr: u64, len: u64, byte: u8) {
        if self.permits(ptr, len, AccessKind::Write) {
            self.memory.fill(ptr, len, [byte; 4]);
        }
    }

    /// Makes the device fault, as by an illegal instruction: later calls that concern it return
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`. The body should return. Ignored if the footprint was declared.
    pub fn fault(&mut self) {
        if let Permitted::Recorded(recorder) = &mut self.access {
            recorder.fault.get_or_insert(ERROR_ILLEGAL_ADDRESS);
        }
    }

    /// Returns whether the launch has used virtual addresses that it cannot access: then the device
    /// faults when the body returns.
    #[must_use]
    pub fn is_faulted(&self) -> bool {
        matches!(&self.access, Permitted::Recorded(recorder) if recorder.fault.is_some())
    }

    /// Returns the accesses outside of the declared footprint, and the recorded footprint and
    /// sticky error.
    pub(crate) fn into_accesses(self) -> (Vec<AddressRange>, Recording, Option<Code>) {
        match self.access {
            Permitted::Declared { outside, .. } => (outside, Recording::default(), None),
            Permitted::Recorded(recorder) => (Vec::new(), recorder.recording, recorder.fault),
        }
    }

    /// Returns whether the access happens, and records it, or that it is outside of the footprint.
    fn permits(&mut self, ptr: u64, len: u64, kind: AccessKind) -> bool {
        match &mut self.access {
            Permitted::Recorded(recorder) => recorder.permits(ptr, len, kind),
            Permitted::Declared { declared, reachable, outside } => {
                let has = |footprint: &Footprint| footprint.has(ptr, len, kind);
                if !has(declared) {
                    outside.push(AddressRange::new(ptr, len));
                    return false;
                }
                has(reachable)
            }
        }
    }
}

impl Footprint {
    /// Returns whether an access is inside of the declared ranges.
    fn has(&self, ptr: u64, len: u64, kind: AccessKind) -> bool {
        let within = |ranges| contains(ranges, AddressRange::new(ptr, len));
        match kind {
            AccessKind::Read | AccessKind::ReadBack | AccessKind::WordRead => {
                within(&self.reads) || within(&self.writes)
            }
            AccessKind::Write | AccessKind::WordWrite => within(&self.writes),
            AccessKind::AtomicRead => {
                within(&self.atomics) || within(&self.reads) || within(&self.writes)
            }
            AccessKind::AtomicWrite => within(&self.atomics) || within(&self.writes),
        }
    }
}

/// Returns whether one of the ranges contains this one. An empty range is contained in any.
fn contains(ranges: &[AddressRange], bytes: AddressRange) -> bool {
    bytes.is_empty() || ranges.iter().any(|range| range.holds(bytes))
}

impl fmt::Debug for KernelMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelMemory").finish_non_exhaustive()
    }
}

type Declare = dyn Fn(&KernelArgs) -> Footprint + Send + Sync;
type Body = dyn Fn(&KernelArgs, &mut KernelMemory<'_>) + Send + Sync;

/// The body of all kernels without one of their own.
pub(crate) type Fallback = Arc<dyn Fn(&str, &KernelArgs, &mut KernelMemory<'_>) + Send + Sync>;

/// A registered kernel.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub(crate) footprint: Arc<Declare>,
    pub(crate) body: Arc<Body>,
}

impl Kernel {
    /// Makes the kernel `name`, which runs the fallback and records its footprint.
    pub(crate) fn of_fallback(fallback: &Fallback, name: &str) -> Self {
        let fallback = fallback.clone();
        let name = name.to_owned();
        let body = move |args: &KernelArgs, memory: &mut KernelMemory<'_>| {
            fallback(&name, args, memory);
        };
        Self { footprint: Arc::new(|_| Footprint::recorded()), body: Arc::new(body) }
    }
}
