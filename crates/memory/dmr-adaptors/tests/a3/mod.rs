//! Helpers of the guard's tests: stacks to guard, and ways to do what a program must not do.

#![allow(dead_code, reason = "each test uses its part")]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use dmr_adaptors::guard::{DebugGuardLayer, DebugGuardResource, GuardChecks};
use dmr_adaptors::{ResourceBuilder, ResourceLayer};
use dmr_core::{
    AllocTag, BlockParts, BlockSlot, BlockState, DeviceBlock, DeviceMemoryResource, DeviceOps,
    Generation, PatternMismatch, ResourceResult, StreamId,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::{PatternOps, Tracked};
use dmr_testkit::Rig;

pub(crate) type Inner = Box<dyn DeviceMemoryResource>;
pub(crate) type Guard = DebugGuardResource<Inner>;

pub(crate) const TAG: AllocTag = AllocTag::new("guarded");
pub(crate) const BOTH: [GuardChecks; 2] = [GuardChecks::Immediate, GuardChecks::Deferred];

/// The resource under the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Direct,
    TrackedDirect,
    Async,
}

pub(crate) const BACKENDS: [Backend; 3] = [Backend::Direct, Backend::TrackedDirect, Backend::Async];
pub(crate) const TRACKING: [Backend; 2] = [Backend::TrackedDirect, Backend::Async];

impl Backend {
    pub(crate) fn make(self, rig: &Rig) -> Inner {
        let streams = || Arc::clone(rig.streams());
        match self {
            Self::Direct => Box::new(DirectCudaResource::new(streams())),
            Self::TrackedDirect => {
                let direct = DirectCudaResource::new(streams());
                Box::new(Tracked::new(direct, streams()).unwrap())
            }
            Self::Async => Box::new(AsyncCudaResource::new(streams(), AsyncConfig::new()).unwrap()),
        }
    }

    pub(crate) fn guarded(self, rig: &Rig, checks: GuardChecks) -> Guard {
        guarded(self.make(rig), layer(rig).with_checks(checks))
    }
}

/// A layer with operations of its own.
pub(crate) fn layer(rig: &Rig) -> DebugGuardLayer {
    DebugGuardLayer::new(Arc::new(PatternOps::new(Arc::clone(rig.streams())).unwrap()))
}

pub(crate) fn guarded<R: DeviceMemoryResource>(
    inner: R,
    layer: impl ResourceLayer<R, Resource = DebugGuardResource<R>>,
) -> DebugGuardResource<R> {
    ResourceBuilder::new(inner).layer(layer).build()
}

/// A moment in the work of [`Hooked`] operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    BeforeFill(StreamId),
    BeforeCheck,
    AfterCollect,
}

/// The operations of a rig, with a hook that acts as another thread or as a driver that fails.
pub(crate) struct Hooked<H> {
    ops: PatternOps,
    hook: H,
}

impl<H: Fn(Moment) -> ResourceResult<()> + Send + Sync> Hooked<H> {
    pub(crate) fn new(rig: &Rig, hook: H) -> Arc<Self> {
        Arc::new(Self { ops: PatternOps::new(Arc::clone(rig.streams())).unwrap(), hook })
    }
}

impl<H> fmt::Debug for Hooked<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}

impl<H: Fn(Moment) -> ResourceResult<()> + Send + Sync> DeviceOps for Hooked<H> {
    fn fill_pattern(
        &self,
        block: &DeviceBlock,
        range: Range<usize>,
        pattern: u32,
        stream: StreamId,
    ) -> ResourceResult<()> {
        (self.hook)(Moment::BeforeFill(stream))?;
        self.ops.fill_pattern(block, range, pattern, stream)
    }

    fn check_pattern(
        &self,
        block: &DeviceBlock,
        range: Range<usize>,
        pattern: u32,
        stream: StreamId,
        key: u64,
    ) -> ResourceResult<()> {
        (self.hook)(Moment::BeforeCheck)?;
        self.ops.check_pattern(block, range, pattern, stream, key)
    }

    fn collect(&self) -> ResourceResult<Vec<PatternMismatch>> {
        let wrong = self.ops.collect();
        (self.hook)(Moment::AfterCollect)?;
        wrong
    }

    fn library_stream(&self, block: &DeviceBlock) -> ResourceResult<StreamId> {
        self.ops.library_stream(block)
    }

    fn count_as_allocation(&self, block: &DeviceBlock) -> bool {
        self.ops.count_as_allocation(block)
    }

    fn join_home_stream(&self, block: &DeviceBlock) -> ResourceResult<bool> {
        self.ops.join_home_stream(block)
    }

    fn synchronize(&self, stream: StreamId) -> ResourceResult<()> {
        self.ops.synchronize(stream)
    }
}

/// The properties of a block that was deallocated, for tests of stale blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory(BlockParts);

impl Memory {
    pub(crate) fn of(block: &DeviceBlock) -> Self {
        Self(BlockParts {
            ptr: block.ptr(),
            bytes: block.bytes(),
            reserved_bytes: block.reserved_bytes(),
            alignment: block.alignment(),
            device_ordinal: block.device_ordinal(),
            alloc_stream: block.alloc_stream(),
            tag: block.tag(),
            generation: block.generation(),
            slot: block.id().slot(),
            state: BlockState::Live,
            part_depth: block.part_depth(),
        })
    }

    pub(crate) fn generation(&self) -> Generation {
        self.0.generation
    }

    /// Returns the block once more, which safe code cannot do.
    pub(crate) fn again(&self) -> DeviceBlock {
        // SAFETY: broken on purpose; the address is never dereferenced.
        #[allow(unsafe_code, reason = "a block that was deallocated")]
        unsafe {
            DeviceBlock::from_parts(self.0)
        }
    }

    /// Submits a write of one byte at `offset` from the block's start, inside or outside.
    pub(crate) fn write(&self, rig: &Rig, offset: i64, stream: impl Into<StreamId>) {
        self.try_write(rig, offset, stream.into()).unwrap();
    }

    /// Submits a write as [`write`](Self::write), where a driver call may fail.
    pub(crate) fn try_write(&self, rig: &Rig, offset: i64, stream: StreamId) -> ResourceResult<()> {
        let ptr = self.0.ptr.wrapping_add_signed(offset);
        let parts = BlockParts { ptr, bytes: 1, slot: BlockSlot::NONE, ..self.0 };
        // SAFETY: a byte of memory that the guard has allocated, by which it is to be found out.
        #[allow(unsafe_code, reason = "a write outside of a block")]
        let byte = unsafe { DeviceBlock::from_parts(parts) };
        // Different from every byte of every pattern that the guard uses.
        rig.ops().fill_pattern(&byte, 0..1, 0x11, stream)
    }
}
