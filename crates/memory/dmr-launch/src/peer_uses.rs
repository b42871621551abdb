//! The uses of memory of another stream pool, and their windows.

use std::sync::Arc;

use dmr_core::{
    BlockUse, DeviceMemoryResource, ResourceError, ResourceResult, StreamId, UseTrackingExt,
};
use dmr_streams::{DeviceContext, HomeStream, LaunchTokens, StreamGuard, StreamPool};
use smallvec::SmallVec;

use crate::PrepareError;
use crate::error::RefusedMemory;

/// Uses of memory of another stream pool, on one of its streams.
#[derive(Clone, Debug)]
pub(crate) struct PeerUses {
    streams: Arc<StreamPool>,
    resource: Arc<dyn DeviceMemoryResource>,
    stream: StreamId,
    uses: SmallVec<[BlockUse; 2]>,
}

/// The open windows of such uses.
#[derive(Debug)]
pub(crate) struct PeerWindows {
    streams: Arc<StreamPool>,
    resource: Arc<dyn DeviceMemoryResource>,
    tokens: LaunchTokens,
}

impl PeerUses {
    /// Adds a use to the uses on the same stream of the same context.
    pub(crate) fn add(
        peers: &mut Vec<Self>,
        used: BlockUse,
        owner: &(impl DeviceContext + ?Sized),
        stream: StreamId,
    ) {
        let streams = owner.streams();
        let resource = owner.resource();
        let is_same = |it: &Self| {
            it.stream == stream
                && Arc::ptr_eq(&it.streams, streams)
                && Arc::ptr_eq(&it.resource, resource)
        };
        let at = peers.iter().position(is_same).unwrap_or_else(|| {
            let streams = Arc::clone(streams);
            let resource = Arc::clone(resource);
            peers.push(Self { streams, resource, stream, uses: SmallVec::new() });
            peers.len() - 1
        });
        let uses = &mut peers[at].uses;
        match uses.iter_mut().find(|it| it.block == used.block && it.bytes == used.bytes) {
            Some(known) => known.access = known.access.and(used.access),
            None => uses.push(used),
        }
    }

    /// Refuses the launch on `stream` if a resource does not track uses.
    pub(crate) fn reject_untracked(peers: &[Self], stream: StreamId) -> Result<(), PrepareError> {
        let untracked = |peer: &Self| Some((peer.stream, *peer.untracked()?));
        let Some((home, used)) = peers.iter().find_map(untracked) else { return Ok(()) };
        let generation = used.block.generation();
        let memory = RefusedMemory::Block { generation, column: None };
        let source = ResourceError::not_tracked(home);
        Err(PrepareError::Untracked { stream, memory, source })
    }

    /// Removes uses that their resources do not track, and returns their number.
    pub(crate) fn skip_untracked(peers: &mut Vec<Self>) -> usize {
        let mut skipped = 0;
        peers.retain(|peer| {
            let is_tracked = peer.untracked().is_none();
            if !is_tracked {
                skipped += peer.uses.len();
            }
            is_tracked
        });
        skipped
    }

    /// Returns a use that the resource does not track.
    fn untracked(&self) -> Option<&BlockUse> {
        let tracks = self.resource.supports_block_use_tracking();
        if tracks { None } else { self.uses.first() }
    }

    pub(crate) fn uses(&self) -> &[BlockUse] {
        &self.uses
    }

    /// Returns whether a window of another stream of their pool conflicts with a use.
    pub(crate) fn has_conflict(&self) -> Option<bool> {
        self.streams.uses().has_conflict(&self.uses, self.stream)
    }

    /// Opens the windows of all uses, or of none, and makes `worker` wait for what they come after.
    pub(crate) fn open(&self, worker: &StreamGuard<'_>) -> ResourceResult<PeerWindows> {
        let home = self.streams.enter(self.stream)?;
        let is_foreign =
            |used: &&BlockUse| used.block.alloc_stream().pool() != Some(self.streams.id());
        if let Some(foreign) = self.uses.iter().find(is_foreign) {
            let ordinal = self.streams.device().ordinal();
            return Err(ResourceError::other_pool(foreign.block, home.id(), ordinal));
        }
        let mut tokens = LaunchTokens::new(home.id());
        tokens.prepare_for(worker, &home, &*self.resource, &self.uses)?;
        let streams = Arc::clone(&self.streams);
        let resource = Arc::clone(&self.resource);
        Ok(PeerWindows { streams, resource, tokens })
    }
}

impl PeerWindows {
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn cancel(&mut self) -> ResourceResult<()> {
        self.tokens.cancel(&self.streams, &*self.resource)
    }

    /// Makes the streams of the memory wait for the work submitted to `worker`, a stream of `pool`,
    /// and closes all windows. Returns the first error.
    pub(crate) fn finish_all(
        windows: &mut Vec<Self>,
        pool: &StreamPool,
        worker: StreamId,
    ) -> ResourceResult<()> {
        let entered = pool.enter_home(worker);
        let mut outcome = Ok(());
        for mut peer in windows.drain(..) {
            let finished = match &entered {
                Ok(HomeStream::Live(worker)) => peer.finish_for(worker),
                Ok(HomeStream::Retired) => peer.finish_for_retired(pool, worker),
                // The work has ended with the context.
                Err(lost @ ResourceError::DeviceLost { .. }) => {
                    peer.finish().and(Err(lost.clone()))
                }
                Err(error) => Err(error.clone()),
            };
            outcome = outcome.and(finished);
        }
        outcome
    }

    fn finish_for(&mut self, worker: &StreamGuard<'_>) -> ResourceResult<()> {
        match self.streams.enter_home(self.tokens.stream())? {
            HomeStream::Live(home) => self.tokens.finish_for(worker, &home, &*self.resource),
            // A stream with an open window is not retired: these tokens have none.
            HomeStream::Retired => Ok(()),
        }
    }

    /// Waits for the work of a stream that was retired: it has no guard. If that fails, the windows
    /// stay open.
    #[cold]
    fn finish_for_retired(&mut self, pool: &StreamPool, worker: StreamId) -> ResourceResult<()> {
        pool.uses().synchronize(&pool.uses().work_so_far(worker)?)?;
        self.finish()
    }

    fn finish(&mut self) -> ResourceResult<()> {
        self.tokens.finish(&self.streams, &*self.resource)
    }
}
