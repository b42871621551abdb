//! The memory of a kernel body: every access is permitted, and recorded or compared with the
//! declared footprint.

use std::fmt;
use std::sync::Arc;

use dmr_ptx::Program;

use crate::abi::{Code, ERROR_ILLEGAL_ADDRESS};
use crate::access::{AccessKind, AddressRange, KernelSite};
use crate::kernel::{Footprint, Recorder, Recording};
use crate::memory::{LateFrees, Memory, MemoryMap, Reach};

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
        self.read_as(AccessKind::Read, ptr, into)
    }

    /// Overwrites the bytes at `ptr`. Returns whether the kernel can access them; if not, nothing
    /// happens.
    pub fn try_write(&mut self, ptr: u64, bytes: &[u8]) -> bool {
        self.write_as(AccessKind::Write, ptr, bytes)
    }

    /// Reads the bytes at `ptr` by an atomic operation, which does not race with other atomic
    /// operations. Returns as [`try_read`](Self::try_read) does.
    pub fn read_atomic(&mut self, ptr: u64, into: &mut [u8]) -> bool {
        self.read_as(AccessKind::AtomicRead, ptr, into)
    }

    /// Overwrites the bytes at `ptr` by an atomic operation. Returns as
    /// [`try_write`](Self::try_write) does.
    pub fn write_atomic(&mut self, ptr: u64, bytes: &[u8]) -> bool {
        self.write_as(AccessKind::AtomicWrite, ptr, bytes)
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

    #[inline]
    fn read_as(&mut self, kind: AccessKind, ptr: u64, into: &mut [u8]) -> bool {
        let may = self.permits(ptr, into.len() as u64, kind);
        if may {
            self.memory.read(ptr, into);
        }
        may
    }

    #[inline]
    fn write_as(&mut self, kind: AccessKind, ptr: u64, bytes: &[u8]) -> bool {
        let may = self.permits(ptr, bytes.len() as u64, kind);
        if may {
            self.memory.write(ptr, bytes);
        }
        may
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

impl fmt::Debug for KernelMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelMemory").finish_non_exhaustive()
    }
}
