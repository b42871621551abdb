//! Memory that is allocated in a capture, and the pool that graphs have it from.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use dmr_core::process::LeakedInChild;
use dmr_core::sync::lock;
use dmr_core::{
    AllocTag, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceResult, StreamId,
};
use dmr_launch::Footprint;
use dmr_streams::{DeviceContext, KernelArg, MemoryOrigin, StreamPool, TrackedMemory};

use crate::arena::Arena;

/// A slab has a multiple of this number of bytes.
const SLAB: usize = 2 << 20;

/// The memory that captures allocate from, in blocks of a context's resource: *slabs*. Clones are
/// the same pool.
///
/// The addresses of a slab stay as they are as long as a graph or a clone of the pool exists. Each
/// replay of a graph is a write of the slabs that it has memory in. So graphs that share a pool run
/// one after the other, and need as much memory as the largest of them, not as all together.
///
/// Budgets, statistics and the log of the resource count the slabs, with the tag of the pool. They
/// are freed, after the last replay, with the last clone and the last graph.
#[derive(Clone)]
pub struct GraphPool {
    inner: Arc<Inner>,
}

struct Inner {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
    tag: AllocTag,
    slabs: LeakedInChild<Mutex<Vec<DeviceBlock>>>,
}

/// Memory of a capture, from [`Capture::allocate`](crate::Capture::allocate). It is for the
/// captured work only: other work would find what the last replay of any graph of the pool has left
/// there.
///
/// It cannot leave the closure:
///
/// ```compile_fail
/// # use dmr_core::ResourceError;
/// # use dmr_graphs::{CaptureMode, Graph};
/// # use dmr_streams::{DeviceContext, StreamLease};
/// # fn leave(gpu: &impl DeviceContext, stream: &StreamLease) {
/// let mut kept = None;
/// // SAFETY: nothing is captured.
/// let _ = unsafe {
///     Graph::capture(gpu, stream, CaptureMode::default(), |capture| {
///         kept = Some(capture.allocate(1000)?);
///         Ok::<_, ResourceError>(())
///     })
/// };
/// # }
/// ```
#[derive(Debug)]
#[must_use = "it stays allocated until the capture ends, unless it is freed"]
pub struct GraphMemory<'c> {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    _of_the_capture: PhantomData<fn(&'c ()) -> &'c ()>,
}

impl GraphPool {
    /// Makes a pool without slabs, in memory of this context.
    pub fn new<C: DeviceContext + ?Sized>(ctx: &C, tag: AllocTag) -> Self {
        let resource = Arc::clone(ctx.resource());
        let streams = Arc::clone(ctx.streams());
        let slabs = LeakedInChild::default();
        Self { inner: Arc::new(Inner { resource, streams, tag, slabs }) }
    }

    /// Returns the bytes of all slabs; 0 in a forked child.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        let Some(slabs) = self.inner.slabs.current() else { return 0 };
        lock(slabs).iter().map(|slab| slab.bytes() as u64).sum()
    }

    /// Returns the tag of its memory.
    pub(crate) fn tag(&self) -> AllocTag {
        self.inner.tag
    }

    /// Returns an arena in which all slabs are free.
    pub(crate) fn arena(&self) -> Arena {
        let mut arena = Arena::default();
        for slab in lock(&self.inner.slabs).iter() {
            arena.add(slab.ptr(), slab.bytes() as u64);
        }
        arena
    }

    /// Returns the home stream of slabs, which no program captures. Created when it is first
    /// needed.
    pub(crate) fn home(&self) -> ResourceResult<StreamId> {
        Ok(self.inner.streams.reclaim_stream()?.id())
    }

    /// Allocates a slab for at least `bytes` bytes into the arena.
    pub(crate) fn grow(&self, bytes: usize, arena: &mut Arena) -> ResourceResult<()> {
        let Inner { resource, tag, slabs, .. } = &*self.inner;
        // More than any device has is refused by the resource.
        let bytes = bytes.max(1).checked_next_multiple_of(SLAB).unwrap_or(bytes);
        let slab = resource.allocate(bytes, self.home()?, *tag)?;
        arena.add(slab.ptr(), slab.bytes() as u64);
        lock(slabs).push(slab);
        Ok(())
    }

    /// Records that work writes the slabs that the arena has used.
    pub(crate) fn record(&self, arena: &Arena, footprint: &mut Footprint) {
        let mut slabs = lock(&self.inner.slabs);
        for address in arena.used() {
            if let Some(slab) = slabs.iter_mut().find(|slab| slab.ptr() == address) {
                footprint.write_column(self.inner.tag, slab);
            }
        }
    }
}

impl fmt::Debug for GraphPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphPool")
            .field("tag", &self.inner.tag)
            .field("reserved_bytes", &self.reserved_bytes())
            .finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(slabs) = self.slabs.current() else { return };
        for slab in lock(slabs).drain(..) {
            // Once more after a driver error: no later call can free it.
            let _ = self.resource.deallocate(slab).or_else(|failed| {
                let DeallocateError { block, .. } = *failed;
                self.resource.deallocate(block)
            });
        }
    }
}

impl GraphMemory<'_> {
    pub(crate) fn new(address: u64, bytes: usize) -> Self {
        Self { address, bytes, _of_the_capture: PhantomData }
    }

    /// Returns the address (a `CUdeviceptr`), a multiple of 256.
    #[must_use]
    pub fn device_ptr(&self) -> u64 {
        self.address
    }

    /// Returns the number of bytes, as requested.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the argument of a kernel: `launch_builder().arg(..)`.
    #[must_use]
    pub fn arg(&self) -> KernelArg {
        KernelArg::of(&Argument { address: self.address, bytes: self.bytes })
    }
}

/// The memory as an argument. Its uses are recorded with its slab.
struct Argument {
    address: u64,
    bytes: usize,
}

impl TrackedMemory for Argument {
    fn device_ptr(&self) -> u64 {
        self.address
    }

    fn size_in_bytes(&self) -> usize {
        self.bytes
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        MemoryOrigin::External { name: "memory of a graph" }
    }
}
