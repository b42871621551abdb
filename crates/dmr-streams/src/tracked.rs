//! Use tracking for a resource that has none.

mod retired;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dmr_core::error::StreamProblem;
use dmr_core::process::LeakedInChild;
use dmr_core::{
    Access, AllocTag, BlockId, BlockSlot, BlockState, BlockUse, DeallocateError, DeviceBlock,
    DeviceMemoryResource, ResourceError, ResourceResult, StreamId, StreamPoolId, Usage, UseToken,
    UseTokens, VirtualMemory,
};

use crate::handed_over::{HandedOver, Inner, Pending, with_slot};
use crate::uses::{Departure, FreeOrder, Leaving, UseTable};
use crate::{BlockOwner, StreamGuard, StreamPool};

/// Gives use tracking to any resource, the direct backend among them.
///
/// Blocks come from the inner resource and go back to it. In between, the use table of the stream
/// pool knows them, so that launches on any stream are ordered.
///
/// # When the inner resource gets a block back
///
/// At once, if all recorded uses are ordered before the home stream's next work. Otherwise the
/// block is *retired* until its windows are closed and its uses on other streams are done: asked
/// at the start of each [`allocate`](DeviceMemoryResource::allocate), again before that refuses
/// for lack of memory, and in [`try_reap`](DeviceMemoryResource::try_reap); waited for in
/// [`reap_pending`](DeviceMemoryResource::reap_pending). The inner resource may then retire it a
/// while longer by rules of its own; [`usage`](DeviceMemoryResource::usage) counts it once.
///
/// An inner resource that tracks uses itself is told of none.
///
/// # Dropping it
///
/// Waits for nothing: the home streams of blocks that are still retired are made to wait for their
/// uses, and the blocks go to the inner resource. Those with an open window are leaked.
pub struct Tracked<R: DeviceMemoryResource> {
    inner: Option<R>,
    streams: Arc<StreamPool>,
    owner: BlockOwner,
    /// Never locked across a call of the inner resource or the driver.
    pending: LeakedInChild<Mutex<Pending>>,
    /// How many blocks are pending or in the hand of a reap.
    count: AtomicUsize,
    /// Held while reaping, so that a reap that waits also waits for what another has in hand.
    reaping: Mutex<()>,
    /// Locked across no driver call.
    handed_over: LeakedInChild<Mutex<HandedOver>>,
}

/// How far a reap goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Poll,
    Wait,
}

impl<R: DeviceMemoryResource> Tracked<R> {
    /// Tracks the uses of `inner`'s blocks on the streams of this pool.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) if `inner` works on another pool.
    pub fn new(inner: R, streams: Arc<StreamPool>) -> ResourceResult<Self> {
        if inner.stream_pool() != streams.id() {
            let stream = streams.default_stream();
            return Err(ResourceError::stream_misuse(stream, StreamProblem::OtherPool));
        }
        Ok(Self {
            inner: Some(inner),
            owner: streams.register(),
            streams,
            pending: LeakedInChild::default(),
            count: AtomicUsize::new(0),
            reaping: Mutex::new(()),
            handed_over: LeakedInChild::default(),
        })
    }

    /// The resource that the memory comes from.
    #[must_use]
    #[allow(clippy::expect_used, reason = "`None` only inside `into_inner`")]
    pub fn get_ref(&self) -> &R {
        self.inner.as_ref().expect("there until `into_inner`")
    }

    /// The resource that the memory comes from. What is retired goes to it as when this is
    /// dropped.
    #[must_use]
    #[allow(clippy::expect_used, reason = "`None` only after this")]
    pub fn into_inner(mut self) -> R {
        self.surrender();
        self.inner.take().expect("there until now")
    }

    fn uses(&self) -> UseTable<'_> {
        self.streams.uses()
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handed_over(&self) -> MutexGuard<'_, HandedOver> {
        self.handed_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a home stream that captures a graph.
    fn refuse_capture(&self, home: StreamId) -> ResourceResult<()> {
        self.streams.enter_home(home)?.refuse_capture()
    }

    /// Enters a block of the inner resource into the use table.
    fn adopt(
        &self,
        block: DeviceBlock,
        home: &StreamGuard<'_>,
    ) -> Result<DeviceBlock, Box<DeallocateError>> {
        let (id, inner) = (block.id(), Inner::of(&block));
        match self.uses().insert(&self.owner, id.generation(), home, inner.to_payload()) {
            Ok(slot) => Ok(with_slot(block.into_parts(), slot)),
            Err(error) => Err(DeallocateError::new(error, block)),
        }
    }

    /// Gives a retired block to the inner resource, ordered after all its uses by now.
    fn hand_over(
        &self,
        block: DeviceBlock,
        inner_slot: BlockSlot,
    ) -> Result<BlockState, Box<DeallocateError>> {
        let id = block.id();
        let state = self.free(block, inner_slot)?;
        self.uses().remove(&self.owner, id);
        Ok(state)
    }

    /// The same for a block that has left the table.
    fn hand_over_leaving(
        &self,
        block: DeviceBlock,
        leaving: Leaving<'_>,
    ) -> Result<BlockState, Box<DeallocateError>> {
        let captured = match self.streams.device().is_lost() {
            true => Ok(()),
            false => self.refuse_capture(block.alloc_stream()),
        };
        let outcome = match captured {
            // The driver call that asked was the one that found the device lost.
            Err(error) if !self.streams.device().is_lost() => {
                Err(DeallocateError::new(error, block))
            }
            _ => self.free(block, Inner::from_payload(leaving.payload()).slot),
        };
        match outcome {
            Ok(_) => leaving.gone(),
            Err(_) => leaving.stay(),
        }
        outcome
    }

    /// Gives a block to the inner resource, as that knows it.
    fn free(
        &self,
        block: DeviceBlock,
        inner_slot: BlockSlot,
    ) -> Result<BlockState, Box<DeallocateError>> {
        let (slot, parts) = (block.id().slot(), block.into_parts());
        let block = with_slot(parts, inner_slot);
        let id = block.id();
        let state = self.get_ref().deallocate(block).map_err(|refused| {
            let DeallocateError { error, block, .. } = *refused;
            DeallocateError::new(error, with_slot(block.into_parts(), slot))
        })?;
        if state != BlockState::Freed {
            self.handed_over().push(id, |id| self.get_ref().is_retired(id));
        }
        Ok(state)
    }

    /// Returns an error for a part of a block of this resource, and in a forked child.
    fn refuse_part(&self, block: &DeviceBlock) -> ResourceResult<()> {
        self.streams.device().refuse_fork()?;
        // Where the inner resource allocates parts, it keeps their wholes: this is none of its parts.
        if block.part_depth() == 0 {
            return Ok(());
        }
        let allocated = self.uses().payload(block.id(), &self.owner).map(Inner::from_payload);
        allocated.map_or(Ok(()), |inner| block.require_part_depth(inner.part_depth))
    }

    /// What a retired block still waits for: `None` if for nothing that the inner resource does
    /// not see to.
    fn order(&self, id: BlockId) -> ResourceResult<FreeOrder> {
        if self.streams.device().is_lost() {
            return Ok(FreeOrder::Home);
        }
        self.refuse_capture(id.alloc_stream())?;
        self.uses().free_order(id)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for Tracked<R> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let guard = self.streams.enter(stream)?;
        let stream = guard.id();
        guard.refuse_capture()?;
        self.hand_over_oldest();
        let block = match self.get_ref().allocate(bytes, stream, tag) {
            Err(ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. })
                if self.count.load(Ordering::SeqCst) > 0 =>
            {
                // What it cannot hand over stays retired.
                let _ = self.try_reap();
                self.get_ref().allocate(bytes, stream, tag)
            }
            answer => answer,
        }?;
        self.adopt(block, &guard).map_err(|refused| {
            let DeallocateError { error, block, .. } = *refused;
            // Refused as well, it is leaked, visibly in the usage.
            let _ = self.get_ref().deallocate(block);
            error
        })
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let id = block.id();
        // First: another thread may have held a lock when the process was forked.
        if let Err(error) = self.refuse_part(&block) {
            return Err(DeallocateError::new(error, block));
        }
        let payload = match self.uses().give_back(id, &self.owner) {
            Ok(Departure::Home(leaving)) => return self.hand_over_leaving(block, leaving),
            Ok(Departure::Retired { payload, .. }) => payload,
            Ok(Departure::Foreign) => {
                let error = ResourceError::foreign_block(&block, self.device_ordinal());
                return Err(DeallocateError::new(error, block));
            }
            Err(error) => return Err(DeallocateError::new(error, block)),
        };
        let inner_slot = Inner::from_payload(payload).slot;
        let outcome = match self.order(id) {
            Ok(FreeOrder::Home) => self.hand_over(block, inner_slot),
            Ok(FreeOrder::InUse) => {
                self.retire(block, inner_slot, None);
                Ok(BlockState::Retired)
            }
            Ok(FreeOrder::After(dependencies)) => {
                self.retire(block, inner_slot, Some(dependencies));
                Ok(BlockState::Retired)
            }
            // The driver call that asked was the one that found the device lost.
            Err(_) if self.streams.device().is_lost() => self.hand_over(block, inner_slot),
            Err(error) => Err(DeallocateError::new(error, block)),
        };
        if outcome.is_err() {
            self.uses().unretire(&self.owner, id);
        }
        outcome
    }

    /// Grows nothing: a resource that grows blocks tracks their uses itself.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.refuse_part(block)?;
        Ok(bytes <= block.bytes())
    }

    fn is_retired(&self, block: BlockId) -> bool {
        if self.streams.device().is_forked() {
            return false;
        }
        if self.uses().is_retired(block) {
            return true;
        }
        self.handed_over().is_kept(block.generation(), |id| self.get_ref().is_retired(id))
    }

    fn device_ordinal(&self) -> usize {
        self.get_ref().device_ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.streams.id()
    }

    fn bytes_outstanding(&self) -> u64 {
        self.get_ref().bytes_outstanding()
    }

    fn usage(&self) -> Usage {
        if self.streams.device().is_forked() {
            return Usage::default();
        }
        let pending = self.pending().bytes;
        let mut usage = self.get_ref().usage();
        usage.live = usage.live.saturating_sub(pending);
        usage.retired += pending;
        usage
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.reap(Patience::Poll, R::try_reap)
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.reap(Patience::Wait, R::reap_pending)
    }

    fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        let before = self.usage().reserved;
        self.reap(Patience::Poll, |inner| inner.trim_to(keep_bytes))?;
        Ok(before.saturating_sub(self.usage().reserved))
    }

    fn supports_block_use_tracking(&self) -> bool {
        true
    }

    fn record_block_use(&self, block: &DeviceBlock, stream: StreamId) -> ResourceResult<()> {
        self.uses().record_block_use(block.id(), stream)
    }

    fn prepare_block_use(
        &self,
        block: BlockId,
        stream: StreamId,
        access: Access,
    ) -> ResourceResult<UseToken> {
        self.uses().prepare_block_use(block, stream, access)
    }

    fn finish_block_use(&self, token: UseToken) -> ResourceResult<()> {
        let mut tokens = UseTokens::new(token.stream());
        tokens.push(token);
        self.finish_uses(tokens)
    }

    fn prepare_uses(&self, uses: &[BlockUse], stream: StreamId) -> ResourceResult<UseTokens> {
        self.uses().prepare(uses, stream)
    }

    fn finish_uses(&self, tokens: UseTokens) -> ResourceResult<()> {
        self.uses().finish_uses(tokens)
    }

    fn cancel_uses(&self, tokens: UseTokens) -> ResourceResult<()> {
        self.uses().cancel(tokens)
    }

    /// Uses of blocks are tracked, uses of pages are not.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.get_ref().virtual_memory()
    }
}

impl<R: DeviceMemoryResource> Drop for Tracked<R> {
    fn drop(&mut self) {
        if self.inner.is_some() {
            self.surrender();
        }
    }
}

/// `Tracked(Direct(device 0))`.
impl<R: DeviceMemoryResource> fmt::Display for Tracked<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tracked({:?})", self.get_ref())
    }
}

impl<R: DeviceMemoryResource> fmt::Debug for Tracked<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
