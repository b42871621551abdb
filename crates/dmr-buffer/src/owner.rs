//! Where a buffer comes from, and how its device work is ordered.

use std::sync::Arc;

use dmr_core::error::StreamProblem;
use dmr_core::{
    Access, BlockId, BlockUse, DeviceMemoryResource, ResourceError, ResourceResult, StreamId,
    UseTokens,
};
use dmr_streams::{DeviceContext, StreamGuard, StreamPool};
use smallvec::SmallVec;

/// The resource and the streams of a buffer. Keeps both alive, so that buffers, contexts and
/// leases are dropped in any order.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) resource: Arc<dyn DeviceMemoryResource>,
    pub(crate) streams: Arc<StreamPool>,
}

impl Owner {
    pub(crate) fn of<C: DeviceContext + ?Sized>(ctx: &C) -> Self {
        Self { resource: Arc::clone(ctx.resource()), streams: Arc::clone(ctx.streams()) }
    }
}

/// What an operation does to a block.
#[derive(Clone, Copy)]
pub(crate) struct Use<'a> {
    pub(crate) owner: &'a Owner,
    pub(crate) block: BlockId,
    pub(crate) access: Access,
    pub(crate) kind: Kind,
}

/// What memory a block is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of the resource, which tracks its uses if it tracks uses.
    Device,
    /// Pinned memory, whose uses the use table of the streams tracks.
    Pinned,
}

/// Submits `work` to the stream, ordered after what its uses must come after, and records them.
/// Makes the context current first.
///
/// If `work` fails, the uses are recorded all the same: part of it may be in flight.
///
/// The uses of pinned memory are prepared in the use table itself. A resource may be any implementation
/// of a safe trait, and the host must not be given pinned memory that the device uses, whatever the
/// resource does.
pub(crate) fn submit(
    stream: &StreamGuard<'_>,
    uses: &[Use<'_>],
    work: impl FnOnce() -> ResourceResult<()>,
) -> ResourceResult<()> {
    let (streams, id) = (stream.pool(), stream.id());
    let mut tracker = None;
    let mut tracked: SmallVec<[BlockUse; 2]> = SmallVec::new();
    let mut pinned: SmallVec<[BlockUse; 2]> = SmallVec::new();
    for &Use { owner, block, access, kind } in uses {
        if owner.streams.id() != streams.id() {
            return Err(ResourceError::stream_misuse(id, StreamProblem::OtherPool));
        }
        if kind == Kind::Pinned {
            pinned.push(BlockUse::new(block, access));
        } else if owner.resource.supports_block_use_tracking() {
            tracker = Some(&owner.resource);
            tracked.push(BlockUse::new(block, access));
        } else if !is_same_stream(block.alloc_stream(), id) {
            return Err(ResourceError::not_tracked(id));
        }
    }
    streams.device().bind()?;
    let pinned = prepare_pinned(streams, &pinned, id)?;
    // All that is tracked on one pool is in one table: any resource that tracks will do.
    let device = match tracker.map(|resource| resource.prepare_uses(&tracked, id)) {
        Some(Err(error)) => {
            // That error says more than one of a window that cannot be closed.
            let _ = pinned.map_or(Ok(()), |tokens| streams.uses().cancel(tokens));
            return Err(error);
        }
        Some(Ok(tokens)) => Some(tokens),
        None => None,
    };
    let worked = work();
    let pinned = pinned.map_or(Ok(()), |tokens| streams.uses().finish(tokens));
    let device = tracker.zip(device).map_or(Ok(()), |(it, tokens)| it.finish_uses(tokens));
    worked.and(pinned).and(device)
}

fn prepare_pinned(
    streams: &StreamPool,
    pinned: &[BlockUse],
    stream: StreamId,
) -> ResourceResult<Option<UseTokens>> {
    if pinned.is_empty() {
        return Ok(None);
    }
    streams.uses().prepare(pinned, stream).map(Some)
}

/// Ids of one slot name one stream, also when the lease of one of them was returned.
fn is_same_stream(a: StreamId, b: StreamId) -> bool {
    (a.pool(), a.slot()) == (b.pool(), b.slot())
}
