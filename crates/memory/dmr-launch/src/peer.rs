//! Memory of another stream pool that a launch uses, such as memory of another device that it
//! accesses as a peer.

use std::sync::Arc;

use dmr_core::{
    Access, BlockUse, DeviceMemoryResource, ResourceError, ResourceResult, StreamId, UseTrackingExt,
};
use dmr_streams::{
    DeviceContext, HomeStream, KernelArg, LaunchTokens, MemoryOrigin, StreamGuard, StreamPool,
    TrackedMemory,
};
use smallvec::SmallVec;

use crate::error::RefusedMemory;
use crate::{LaunchMode, LaunchRecorder, PrepareError};

/// Uses of memory of another stream pool, on one of its streams.
#[derive(Debug)]
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

/// Memory of another device, or of another stream pool of the same device.
impl LaunchRecorder {
    /// Records that the launch reads memory of another stream pool: `owner` is the context of the
    /// memory, and `stream` a stream of its pool.
    ///
    /// The launch comes after the work that was submitted to `stream` so far and after all uses
    /// that a read there must come after. When the launch is finished, `stream` waits for it, and
    /// later uses of the memory, on any stream of its pool, are ordered after the launch.
    ///
    /// The kernel accesses the memory over the bus: the launch's device needs peer access, which
    /// the runtime enables (`DeviceRuntime::enable_peer_access`). A copy needs none.
    pub fn read_peer(
        &mut self,
        memory: &(impl TrackedMemory + ?Sized),
        owner: &(impl DeviceContext + ?Sized),
        stream: impl Into<StreamId>,
    ) -> KernelArg {
        self.record_peer(memory, Access::Read, owner, stream.into())
    }

    /// Records that the launch overwrites memory of another stream pool, as
    /// [`read_peer`](Self::read_peer) records a read.
    pub fn write_peer(
        &mut self,
        memory: &mut (impl TrackedMemory + ?Sized),
        owner: &(impl DeviceContext + ?Sized),
        stream: impl Into<StreamId>,
    ) -> KernelArg {
        self.record_peer(memory, Access::Write, owner, stream.into())
    }

    /// Records that the launch reads and writes memory of another stream pool, as
    /// [`read_peer`](Self::read_peer) records a read.
    pub fn read_write_peer(
        &mut self,
        memory: &mut (impl TrackedMemory + ?Sized),
        owner: &(impl DeviceContext + ?Sized),
        stream: impl Into<StreamId>,
    ) -> KernelArg {
        self.record_peer(memory, Access::ReadWrite, owner, stream.into())
    }

    fn record_peer(
        &mut self,
        memory: &(impl TrackedMemory + ?Sized),
        access: Access,
        owner: &(impl DeviceContext + ?Sized),
        stream: StreamId,
    ) -> KernelArg {
        match memory.origin() {
            MemoryOrigin::Block(block) => {
                let used = BlockUse::of_bytes(block, access, memory.byte_range());
                self.add_peer_use(used, owner, stream);
            }
            MemoryOrigin::Empty => {}
            MemoryOrigin::External { name } => self.leave_out(name, None),
            _ => self.leave_out("pinned memory of another stream pool", None),
        }
        KernelArg::of(memory)
    }

    fn add_peer_use(
        &mut self,
        used: BlockUse,
        owner: &(impl DeviceContext + ?Sized),
        stream: StreamId,
    ) {
        let streams = owner.streams();
        let resource = owner.resource();
        let is_same = |it: &PeerUses| {
            it.stream == stream
                && Arc::ptr_eq(&it.streams, streams)
                && Arc::ptr_eq(&it.resource, resource)
        };
        let at = self.peers.iter().position(is_same).unwrap_or_else(|| {
            let streams = Arc::clone(streams);
            let resource = Arc::clone(resource);
            self.peers.push(PeerUses { streams, resource, stream, uses: SmallVec::new() });
            self.peers.len() - 1
        });
        let uses = &mut self.peers[at].uses;
        match uses.iter_mut().find(|it| it.block == used.block && it.bytes == used.bytes) {
            Some(known) => known.access = known.access.and(used.access),
            None => uses.push(used),
        }
    }

    /// Refuses or skips uses of peers that are not tracked, by the mode.
    pub(crate) fn refuse_or_leave_out_peers(
        &mut self,
        worker: &StreamGuard<'_>,
    ) -> Result<(), PrepareError> {
        let stream = worker.id();
        while let Some(at) = self.peers.iter().position(|peer| peer.untracked().is_some()) {
            if self.mode() == LaunchMode::Permissive {
                self.count_skipped(self.peers[at].uses.len());
                self.peers.remove(at);
                continue;
            }
            let Some(untracked) = self.peers[at].untracked() else { break };
            let generation = untracked.block.generation();
            let memory = RefusedMemory::Block { generation, column: None };
            let source = ResourceError::not_tracked(self.peers[at].stream);
            return Err(PrepareError::Untracked { stream, memory, source });
        }
        Ok(())
    }
}

impl PeerUses {
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
