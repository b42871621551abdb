//! The uses that one launch has recorded, before any window is open.

use dmr_core::{
    Access, AllocTag, BlockId, BlockUse, DeviceMemoryResource, Generation, ResourceError,
    UseTrackingExt,
};
use dmr_streams::{KernelArg, MemoryOrigin, StreamGuard, TrackedMemory};
use smallvec::SmallVec;

use crate::PrepareError;
use crate::error::RefusedMemory;
use crate::mode::LaunchMode;
use crate::peer_uses::PeerUses;

/// The number of uses of one launch that need no allocation on the host heap.
pub(crate) const INLINE: usize = 8;

/// The uses of a launch: each block and each part of a block once, with the combined access.
#[cfg_attr(
    not(feature = "cudarc"),
    allow(unreachable_pub, reason = "only the sealed trait of `memory` names it")
)]
#[derive(Clone, Debug)]
pub struct LaunchUses {
    pub(crate) mode: LaunchMode,
    /// Uses of pinned memory, then uses of blocks.
    list: SmallVec<[BlockUse; INLINE]>,
    /// The number of uses of pinned memory.
    pinned: usize,
    /// The column of each use that is one, by its index; shorter if the last uses are none.
    columns: SmallVec<[Option<AllocTag>; INLINE]>,
    /// The first memory for which a strict launch is refused.
    external: Option<RefusedMemory>,
    /// The first memory that is written and may only be read.
    read_only: Option<RefusedMemory>,
    pub(crate) skipped: usize,
    /// Uses of memory of other stream pools.
    pub(crate) peers: Vec<PeerUses>,
}

impl LaunchUses {
    pub(crate) fn new(mode: LaunchMode) -> Self {
        Self {
            mode,
            list: SmallVec::new(),
            pinned: 0,
            columns: SmallVec::new(),
            external: None,
            read_only: None,
            skipped: 0,
            peers: Vec::new(),
        }
    }

    /// Returns the uses of pinned memory, which the use table of the streams tracks.
    #[inline]
    pub(crate) fn pinned(&self) -> &[BlockUse] {
        &self.list[..self.pinned]
    }

    /// Returns the uses of blocks, which the resource tracks.
    #[inline]
    pub(crate) fn blocks(&self) -> &[BlockUse] {
        &self.list[self.pinned..]
    }

    /// Returns all uses of memory of the launch's own stream pool.
    pub(crate) fn own(&self) -> &[BlockUse] {
        &self.list
    }

    /// Returns all uses.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &BlockUse> {
        self.list.iter().chain(self.peers.iter().flat_map(PeerUses::uses))
    }

    pub(crate) fn count(&self) -> usize {
        self.list.len() + self.peers.iter().map(|peer| peer.uses().len()).sum::<usize>()
    }

    /// Returns whether nothing was recorded: neither a use, nor memory that is not tracked.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
            && self.peers.is_empty()
            && self.external.is_none()
            && self.skipped == 0
    }

    /// Records a use, and returns the kernel argument of its memory.
    pub(crate) fn record<M: TrackedMemory + ?Sized>(
        &mut self,
        memory: &M,
        access: Access,
        column: Option<AllocTag>,
    ) -> KernelArg {
        self.reject_read_only(memory, access, column);
        let used = |block| BlockUse::of_bytes(block, access, memory.byte_range());
        match memory.origin() {
            MemoryOrigin::Block(block) => self.add(used(block), column),
            MemoryOrigin::Pinned(block) => self.add_pinned(used(block), column),
            MemoryOrigin::Empty => {}
            MemoryOrigin::External { name } => self.skip_or_reject(name, column),
            // A kind of memory that this version does not have is not tracked.
            _ => self.skip_or_reject("memory of an unknown kind", column),
        }
        KernelArg::of(memory)
    }

    /// Has the launch refused if it writes memory that may only be read.
    pub(crate) fn reject_read_only<M: TrackedMemory + ?Sized>(
        &mut self,
        memory: &M,
        access: Access,
        column: Option<AllocTag>,
    ) {
        if !access.writes() || !memory.is_read_only() {
            return;
        }
        let refused = match memory.origin() {
            MemoryOrigin::Block(block) | MemoryOrigin::Pinned(block) => {
                RefusedMemory::Block { generation: block.generation(), column }
            }
            MemoryOrigin::External { name } => {
                RefusedMemory::External { name: name.into(), column }
            }
            // There is nothing to write.
            _ => return,
        };
        self.read_only.get_or_insert(refused);
    }

    fn refuse_read_only(&self, worker: &StreamGuard<'_>) -> Result<(), PrepareError> {
        let refused = |memory: &RefusedMemory| {
            Err(PrepareError::ReadOnly { stream: worker.id(), memory: memory.clone() })
        };
        self.read_only.as_ref().map_or(Ok(()), refused)
    }

    fn add_pinned(&mut self, new: BlockUse, column: Option<AllocTag>) {
        let recorded = self.list.len();
        self.add(new, column);
        if self.list.len() > recorded {
            self.list.swap(self.pinned, recorded);
            if !self.columns.is_empty() {
                self.columns.resize(self.list.len(), None);
                self.columns.swap(self.pinned, recorded);
            }
            self.pinned += 1;
        }
    }

    /// Finds a use by its bytes and the whole identity of its block: another generation at the same
    /// address is another block.
    fn add(&mut self, new: BlockUse, column: Option<AllocTag>) {
        let is_same = |known: &BlockUse| known.bytes == new.bytes && known.block == new.block;
        let index = match self.list.iter().position(is_same) {
            Some(index) => {
                let access = &mut self.list[index].access;
                *access = access.and(new.access);
                index
            }
            None => {
                self.list.push(new);
                self.list.len() - 1
            }
        };
        if column.is_some() {
            self.name(index, column);
        }
    }

    /// Names the column of a use, unless it has a name.
    #[cold]
    fn name(&mut self, index: usize, column: Option<AllocTag>) {
        self.columns.resize(self.list.len(), None);
        self.columns[index] = self.columns[index].or(column);
    }

    fn column(&self, index: usize) -> Option<AllocTag> {
        self.columns.get(index).copied().flatten()
    }

    /// Records memory whose uses are not tracked: a permissive launch skips it, a strict one is
    /// refused when it is prepared.
    pub(crate) fn skip_or_reject(&mut self, name: &str, column: Option<AllocTag>) {
        match self.mode {
            LaunchMode::Permissive => self.skipped += 1,
            LaunchMode::Strict => {
                self.external
                    .get_or_insert_with(|| RefusedMemory::External { name: name.into(), column });
            }
        }
    }

    /// Refuses the launch if uses of its memory are not tracked.
    pub(crate) fn reject_untracked(
        &self,
        worker: &StreamGuard<'_>,
        resource: &dyn DeviceMemoryResource,
    ) -> Result<(), PrepareError> {
        let stream = worker.id();
        self.refuse_read_only(worker)?;
        if let Some(memory) = &self.external {
            return Err(PrepareError::External { stream, memory: memory.clone() });
        }
        PeerUses::reject_untracked(&self.peers, stream)?;
        let Some(first) = self.first_unordered(worker, resource) else { return Ok(()) };
        let block = self.list[first].block;
        let generation = block.generation();
        let memory = RefusedMemory::Block { generation, column: self.column(first) };
        Err(if is_foreign(block, worker) {
            PrepareError::other_pool(block, memory, worker)
        } else {
            let source = ResourceError::not_tracked(stream);
            PrepareError::Untracked { stream, memory, source }
        })
    }

    /// Skips all memory whose uses are not tracked, or refuses the launch, by the mode.
    #[inline]
    pub(crate) fn reject_or_skip_untracked(
        &mut self,
        worker: &StreamGuard<'_>,
        resource: &dyn DeviceMemoryResource,
    ) -> Result<(), PrepareError> {
        match self.mode {
            LaunchMode::Strict => self.reject_untracked(worker, resource),
            LaunchMode::Permissive => {
                self.refuse_read_only(worker)?;
                self.skip_untracked(worker, resource);
                Ok(())
            }
        }
    }

    fn skip_untracked(&mut self, worker: &StreamGuard<'_>, resource: &dyn DeviceMemoryResource) {
        self.skipped += PeerUses::skip_untracked(&mut self.peers);
        while let Some(index) = self.first_unordered(worker, resource) {
            self.list.remove(index);
            if index < self.columns.len() {
                self.columns.remove(index);
            }
            self.pinned -= usize::from(index < self.pinned);
            self.skipped += 1;
        }
    }

    /// Returns the index of the first use that is not tracked.
    fn first_unordered(
        &self,
        worker: &StreamGuard<'_>,
        resource: &dyn DeviceMemoryResource,
    ) -> Option<usize> {
        let pinned = self.pinned;
        let tracks = self.list.len() == pinned || resource.supports_block_use_tracking();
        // Host memory is never left out: its windows open whatever its resource claims, or the
        // launch is refused.
        let untracked = |block: BlockId| !tracks && !block.slot().is_of_host_memory();
        self.list.iter().enumerate().position(|(index, known)| {
            (index >= pinned && untracked(known.block)) || is_foreign(known.block, worker)
        })
    }

    /// Returns the columns of the launch, with their blocks.
    pub(crate) fn named_columns(&self) -> Box<[(AllocTag, Generation)]> {
        let columns = self.list.iter().zip(&self.columns);
        columns.filter_map(|(used, column)| Some(((*column)?, used.block.generation()))).collect()
    }
}

fn is_foreign(block: BlockId, worker: &StreamGuard<'_>) -> bool {
    block.alloc_stream().pool() != Some(worker.pool().id())
}
