//! The resource and streams of a buffer, and submitting work in the order of its uses.

use std::sync::Arc;

use dmr_core::{
    AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult, StreamId,
    UseTrackingExt,
};
use dmr_streams::{
    Declaration, Device, DeviceContext, LaunchTokens, PinnedResources, StreamGuard, StreamPool,
};
use smallvec::SmallVec;

use crate::failures;

/// The resources and the streams of a buffer. Keeps them alive, so that buffers, contexts and
/// leases may be dropped in any order.
#[derive(Clone, Debug)]
pub struct Owner {
    pub(crate) resource: Arc<dyn DeviceMemoryResource>,
    pub(crate) streams: Arc<StreamPool>,
    pub(crate) pinned: Option<Arc<PinnedResources>>,
}

impl Owner {
    pub(crate) fn of<C: DeviceContext + ?Sized>(ctx: &C) -> Self {
        Self {
            resource: Arc::clone(ctx.resource()),
            streams: Arc::clone(ctx.streams()),
            pinned: ctx.pinned_resources().cloned(),
        }
    }

    /// Allocates a block of at least `bytes` bytes.
    ///
    /// # Errors
    ///
    /// The resource's; [`OutOfBounds`](ResourceError::OutOfBounds) if it returns a smaller block:
    /// copies into that would write over other memory.
    pub(crate) fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let block = self.resource.allocate(bytes, stream, tag)?;
        if block.bytes() >= bytes {
            return Ok(block);
        }
        let too_small = ResourceError::out_of_bounds(&block, 0, bytes);
        self.free(block);
        Err(too_small)
    }

    /// Frees a block. Keeps it with its error if the resource refuses it.
    pub(crate) fn free(&self, block: DeviceBlock) {
        if let Err(refused) = self.resource.deallocate(block) {
            failures::keep(refused, &self.resource);
        }
    }
}

impl DeviceContext for Owner {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    fn pinned_resources(&self) -> Option<&Arc<PinnedResources>> {
        self.pinned.as_ref()
    }
}

/// An operation's use of a block.
#[derive(Clone, Copy)]
pub(crate) struct Use<'a> {
    pub(crate) owner: &'a Owner,
    pub(crate) used: BlockUse,
    pub(crate) kind: Kind,
}

/// The kind of memory that a use is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Memory of the resource, whose uses the resource may track.
    Device,
    /// Pinned memory, whose uses are tracked in the use table of the streams.
    Pinned,
}

/// Submits `work` to the stream after the dependencies of its uses, and records the uses. Makes the
/// context current first.
///
/// If `work` fails, the uses are recorded all the same: part of the work may be in flight.
pub(crate) fn submit(
    stream: &StreamGuard<'_>,
    uses: &[Use<'_>],
    work: impl FnOnce() -> ResourceResult<()>,
) -> ResourceResult<()> {
    submit_beside(stream, uses, Declared { uses, host: HostBytes::NONE }, work)
}

/// The memory that work accesses.
#[derive(Clone, Copy)]
pub(crate) struct Declared<'a> {
    pub(crate) uses: &'a [Use<'a>],
    /// Host memory of the caller.
    pub(crate) host: HostBytes,
}

/// Host memory that work reads or writes.
#[derive(Clone, Copy)]
pub(crate) struct HostBytes {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

impl HostBytes {
    pub(crate) const NONE: Self = Self { address: 0, bytes: 0 };
}

/// Submits work as [`submit`] does, which accesses memory as `declared` says: also as uses that the
/// caller records.
pub(crate) fn submit_beside(
    stream: &StreamGuard<'_>,
    uses: &[Use<'_>],
    declared: Declared<'_>,
    work: impl FnOnce() -> ResourceResult<()>,
) -> ResourceResult<()> {
    let streams = stream.pool();
    let id = stream.id();
    // All that is tracked on one pool is in one table: any resource that tracks will do.
    let Some(mut resource) = uses.first().map(|used| &used.owner.resource) else { return work() };
    let mut tracked: SmallVec<[BlockUse; 2]> = SmallVec::new();
    let mut pinned: SmallVec<[BlockUse; 2]> = SmallVec::new();
    for &Use { owner, used, kind } in uses {
        if owner.streams.id() != streams.id() {
            return Err(ResourceError::other_pool(used.block, id, streams.device().ordinal()));
        }
        if kind == Kind::Pinned {
            pinned.push(used);
        } else if owner.resource.supports_block_use_tracking() {
            resource = &owner.resource;
            tracked.push(used);
        } else if !is_same_stream(used.block.alloc_stream(), id) {
            return Err(ResourceError::not_tracked(id));
        } else if used.block.slot().is_of_host_memory() {
            pinned.push(used);
        }
    }
    streams.device().bind()?;
    let mut tokens = LaunchTokens::new(id);
    tokens.prepare(stream, resource, &pinned, &tracked)?;
    let worked = compared(streams.device(), declared, work);
    worked.and(tokens.finish(streams, resource))
}

/// Runs `work`, which the simulated driver compares with what is declared.
#[inline]
fn compared<T>(device: &Device, declared: Declared<'_>, work: impl FnOnce() -> T) -> T {
    if !Declaration::is_compared() {
        return work();
    }
    let uses = declared.uses.iter().map(|used| &used.used);
    let HostBytes { address, bytes } = declared.host;
    let _declared = match bytes {
        0 => Declaration::begin(device, None, Some(uses)),
        _ => Declaration::begin_with_host(device, uses, address, bytes),
    };
    work()
}

/// Returns whether two ids name the same stream. Ids of one slot do, also of different leases.
pub(crate) fn is_same_stream(a: StreamId, b: StreamId) -> bool {
    (a.pool(), a.slot()) == (b.pool(), b.slot())
}
