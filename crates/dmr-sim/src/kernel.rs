//! Kernels as closures: the arguments of a launch, its footprint, its body.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::address::is_on_device;
use crate::mapping::Mappings;
use crate::store::Store;

/// The arguments of one launch, by parameter index.
#[derive(Clone, Debug)]
pub struct KernelArgs {
    params: Vec<Box<[u8]>>,
    grid: [u32; 3],
    block: [u32; 3],
}

impl KernelArgs {
    pub(crate) fn new(params: Vec<Box<[u8]>>, grid: [u32; 3], block: [u32; 3]) -> Self {
        Self { params, grid, block }
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

    fn head<const N: usize>(&self, index: usize) -> [u8; N] {
        self.bytes(index).first_chunk().copied().unwrap_or([0; N])
    }
}

/// The memory that a launch accesses: declared when it is submitted, enforced when it runs.
#[derive(Clone, Debug, Default)]
pub struct Footprint {
    pub(crate) reads: Vec<(u64, u64)>,
    pub(crate) writes: Vec<(u64, u64)>,
    pub(crate) nanoseconds: Option<u64>,
}

impl Footprint {
    /// Makes a footprint without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a read of `len` bytes at `ptr`.
    #[must_use]
    pub fn reads(mut self, ptr: u64, len: u64) -> Self {
        self.reads.push((ptr, len));
        self
    }

    /// Adds a write of `len` bytes at `ptr`. The kernel may read them back once they are written; declare
    /// a read as well if it needs the old bytes.
    #[must_use]
    pub fn writes(mut self, ptr: u64, len: u64) -> Self {
        self.writes.push((ptr, len));
        self
    }

    /// Sets the duration on the virtual clock that `cuEventElapsedTime` reads.
    #[must_use]
    pub fn takes(mut self, nanoseconds: u64) -> Self {
        self.nanoseconds = Some(nanoseconds);
        self
    }
}

/// The memory of a kernel body: the footprint of its launch, and nothing else.
pub struct KernelMemory<'a> {
    pub(crate) memory: Memory<'a>,
    pub(crate) declared: &'a Footprint,
    /// The accessible part of the footprint. The rest was reported at submission, and accesses there do nothing.
    pub(crate) reachable: &'a Footprint,
    /// Accesses outside the footprint: address and bytes.
    pub(crate) outside: Vec<(u64, u64)>,
}

impl KernelMemory<'_> {
    /// Reads the bytes at `ptr`.
    pub fn read(&mut self, ptr: u64, into: &mut [u8]) {
        if self.may_read(ptr, into.len() as u64) {
            self.memory.read(ptr, into);
        }
    }

    /// Overwrites the bytes at `ptr`.
    pub fn write(&mut self, ptr: u64, bytes: &[u8]) {
        if self.may_write(ptr, bytes.len() as u64) {
            self.memory.write(ptr, bytes);
        }
    }

    /// Overwrites `len` bytes at `ptr` with `byte`.
    pub fn fill(&mut self, ptr: u64, len: u64, byte: u8) {
        if self.may_write(ptr, len) {
            self.memory.fill(ptr, len, [byte; 4]);
        }
    }

    /// Returns the offset of the first byte in `len` bytes at `ptr` that differs from the little-endian
    /// `pattern` repeated. Cheap on long fills.
    pub fn first_mismatch(&mut self, ptr: u64, len: u64, pattern: u32) -> Option<u64> {
        if !self.may_read(ptr, len) {
            return None;
        }
        self.memory.first_mismatch(ptr, len, pattern.to_le_bytes())
    }

    fn may_read(&mut self, ptr: u64, len: u64) -> bool {
        let can_read = |footprint: &Footprint| {
            contains(&footprint.reads, ptr, len) || contains(&footprint.writes, ptr, len)
        };
        if !can_read(self.declared) {
            self.outside.push((ptr, len));
            return false;
        }
        can_read(self.reachable)
    }

    fn may_write(&mut self, ptr: u64, len: u64) -> bool {
        if !contains(&self.declared.writes, ptr, len) {
            self.outside.push((ptr, len));
            return false;
        }
        contains(&self.reachable.writes, ptr, len)
    }
}

/// Returns whether one of the ranges contains this one. An empty range is contained in any.
fn contains(ranges: &[(u64, u64)], ptr: u64, len: u64) -> bool {
    let contains = |&(at, bytes): &(u64, u64)| {
        ptr.checked_sub(at).is_some_and(|skip| skip <= bytes && len <= bytes - skip)
    };
    len == 0 || ranges.iter().any(contains)
}

impl fmt::Debug for KernelMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelMemory").field("declared", self.declared).finish_non_exhaustive()
    }
}

/// All memory: device memory in the store, pinned host memory in the host's.
pub(crate) struct Memory<'a> {
    pub(crate) store: &'a mut Store,
    /// The mappings of virtual addresses.
    pub(crate) mappings: &'a Mappings,
}

impl Memory<'_> {
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        if is_on_device(at) {
            for piece in self.mappings.pieces(at, into.len() as u64) {
                let into = &mut into[(piece.at - at) as usize..][..piece.bytes as usize];
                self.store.read(piece.physical, into);
            }
        } else {
            let host = at as usize as *const u8;
            // SAFETY: operations and kernels access only memory that was accessible at their
            // submission: this is inside of pinned host memory, which is released only after all
            // earlier work has run.
            unsafe { std::ptr::copy(host, into.as_mut_ptr(), into.len()) };
        }
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        if is_on_device(at) {
            for piece in self.mappings.pieces(at, bytes.len() as u64) {
                let bytes = &bytes[(piece.at - at) as usize..][..piece.bytes as usize];
                self.store.write(piece.physical, bytes);
            }
        } else {
            let host = at as usize as *mut u8;
            // SAFETY: as in `read`.
            unsafe { std::ptr::copy(bytes.as_ptr(), host, bytes.len()) };
        }
    }

    pub(crate) fn fill(&mut self, at: u64, len: u64, pattern: [u8; 4]) {
        if is_on_device(at) {
            for piece in self.mappings.pieces(at, len) {
                let pattern = rotated(pattern, piece.at - at);
                self.store.fill(piece.physical, piece.bytes, pattern);
            }
        } else {
            let bytes: Vec<u8> = pattern.iter().copied().cycle().take(len as usize).collect();
            self.write(at, &bytes);
        }
    }

    pub(crate) fn copy(&mut self, to: u64, from: u64, len: u64) {
        if is_on_device(to) && is_on_device(from) {
            for source in self.mappings.pieces(from, len) {
                let to = to + (source.at - from);
                for target in self.mappings.pieces(to, source.bytes) {
                    let physical = source.physical + (target.at - to);
                    self.store.copy(target.physical, physical, target.bytes);
                }
            }
        } else {
            let mut bytes = vec![0; len as usize];
            self.read(from, &mut bytes);
            self.write(to, &bytes);
        }
    }

    fn first_mismatch(&self, at: u64, len: u64, pattern: [u8; 4]) -> Option<u64> {
        if is_on_device(at) {
            return self.mappings.pieces(at, len).into_iter().find_map(|piece| {
                let skipped = piece.at - at;
                let pattern = rotated(pattern, skipped);
                let found = self.store.first_mismatch(piece.physical, piece.bytes, pattern);
                found.map(|offset| skipped + offset)
            });
        }
        let mut bytes = vec![0; len as usize];
        self.read(at, &mut bytes);
        bytes.iter().zip(pattern.iter().cycle()).position(|(a, b)| a != b).map(|i| i as u64)
    }
}

/// Returns the pattern rotated by `skipped` bytes.
fn rotated(mut pattern: [u8; 4], skipped: u64) -> [u8; 4] {
    pattern.rotate_left((skipped % 4) as usize);
    pattern
}

type Declare = dyn Fn(&KernelArgs) -> Footprint + Send + Sync;
type Body = dyn Fn(&KernelArgs, &mut KernelMemory<'_>) + Send + Sync;

/// A registered kernel.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub(crate) footprint: Arc<Declare>,
    pub(crate) body: Arc<Body>,
}

/// Returns the kernels of every universe: those that dmr's crates ship as PTX for real devices.
pub(crate) fn built_in() -> HashMap<String, Kernel> {
    let check = Kernel {
        footprint: Arc::new(|args| {
            let (ptr, bytes, result) = (args.u64(0), args.u64(1), args.u64(3));
            Footprint::new().reads(ptr, bytes).reads(result, 8).writes(result, 8)
        }),
        body: Arc::new(|args, memory| {
            let (ptr, bytes, pattern, result) =
                (args.u64(0), args.u64(1), args.u32(2), args.u64(3));
            if let Some(offset) = memory.first_mismatch(ptr, bytes, pattern) {
                let mut old = [0; 8];
                memory.read(result, &mut old);
                let least = offset.min(u64::from_le_bytes(old));
                memory.write(result, &least.to_le_bytes());
            }
        }),
    };
    let spin = Kernel {
        footprint: Arc::new(|args| Footprint::new().takes(args.u64(0))),
        body: Arc::new(|_, _| {}),
    };
    HashMap::from([("dmr_check_pattern".into(), check), ("dmr_spin".into(), spin)])
}
