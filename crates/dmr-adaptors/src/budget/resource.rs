//! [`GlobalDeviceBudget`]: a resource that charges a budget for each block that it allocates.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use dmr_core::size::human_bytes;
use dmr_core::{
    AllocTag, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceError,
    ResourceResult, StreamId, Usage, VirtualMemory,
};

use super::Budget;
use super::charges::{Lost, Place};
use super::pending::{Entry, Polled, Source};
use super::reservation::out_of_budget;
use super::shard::Shard;
use super::tags::BEFORE;
use super::tree::{Refused, Tree};
use crate::forward::forward;

/// Bounds what passes through it until it is freed: a hard limit on live and retired bytes.
///
/// The limit is kept at every instant, under any number of threads: bytes are charged before the
/// upstream resource is called, and released after it has freed them. An allocation that is under way
/// counts, also if upstream refuses it in the end.
///
/// # When a request is refused
///
/// A request larger than the limit is refused at once, without a reap. Any other is refused only
/// if at some instant during the call it did not fit, and after
///
/// 1. releasing what the resources of the whole budget have freed meanwhile,
/// 2. a `try_reap` of those resources,
/// 3. a `reap_pending` of this resource, unless
///    [`with_reap_pending`](super::BudgetLayer::with_reap_pending) disables it.
///
/// # Below and above
///
/// Below a pool it bounds what the pool takes from the device; above a pool, what a tenant takes
/// from the pool. Inside the debug guard it counts red zones and the quarantine, outside it does
/// not, and the block comes back to the budget when its quarantine is over. A stack with two
/// budgets of one tree charges the tree twice.
///
/// # Calls that bypass it
///
/// What is allocated or grown directly upstream, with [`get_ref`](Self::get_ref) or a clone of an `Arc`, is
/// not charged, and the limit does not bound it. A block gives back what its budget was charged for it:
/// nothing if it was allocated upstream or by another budget, and not the bytes by which it grew there. When a block grows through
/// the budget, it is charged for all of its size. A block that is deallocated upstream stays charged until
/// another block gets its slot in the use table; without use tracking, as long as the budget lives.
///
/// # Dropping it
///
/// Does not wait. If blocks are still retired, the upstream resource is kept until they are
/// freed, or until the budget itself is dropped. Live blocks stay charged.
///
/// # Cost
///
/// An allocation takes one atomic operation on a cache line of the calling thread, a free a store
/// there; both count the tag. A thread takes bytes in advance, or keeps those that it frees, where
/// there is plenty, and goes to a lock when they do not suffice; a refusal takes all of that back
/// before it is final.
pub struct GlobalDeviceBudget<R: DeviceMemoryResource + 'static> {
    source: Arc<Source<R>>,
    registration: Registration,
    pub(super) budget: Budget,
    /// Whether the charge of a block is found by the block's slot.
    by_slot: bool,
    reap_pending: bool,
}

impl<R: DeviceMemoryResource + 'static> GlobalDeviceBudget<R> {
    pub(super) fn new(
        inner: R,
        budget: &Budget,
        reap_pending: bool,
        charge_existing: bool,
    ) -> Self {
        let out = if charge_existing { inner.usage() } else { Usage::default() };
        let account = &budget.account;
        account.add_earlier(out.live);
        let source = Arc::new(Source::new(inner, account.id, out.retired));
        if let Some(mut books) = account.tree.books() {
            books.draw_anyway(account.id, out.outstanding());
        }
        account.tree.count_bytes(account.id, BEFORE, out.outstanding());
        Self::registered(source, budget.clone(), reap_pending)
    }

    fn registered(source: Arc<Source<R>>, budget: Budget, reap_pending: bool) -> Self {
        let registration = Registration::new(&source, &budget);
        let streams = source.resource.stream_pool();
        let by_slot = budget.account.tree.charges.add_resource(streams);
        Self { source, registration, budget, by_slot, reap_pending }
    }

    /// Returns the upstream resource, which is charged to no budget any more. Live blocks stay charged, as
    /// when this is dropped.
    ///
    /// # Errors
    ///
    /// This, unchanged: deallocated blocks are still retired, or another thread polls them.
    /// Call [`reap_pending`](DeviceMemoryResource::reap_pending), and try again.
    pub fn into_inner(self) -> Result<R, Self> {
        self.source.poll(self.tree());
        if self.source.has_pending() {
            return Err(self);
        }
        let Self { source, registration, budget, reap_pending, .. } = self;
        drop(registration);
        let alone = Arc::try_unwrap(source).map(Source::into_resource);
        alone.map_err(|source| Self::registered(source, budget, reap_pending))
    }

    /// Returns the upstream resource. Nothing is charged for what it allocates when it is called directly.
    #[must_use]
    pub fn get_ref(&self) -> &R {
        &self.source.resource
    }

    /// Returns the budget that this charges.
    #[must_use]
    pub const fn budget(&self) -> &Budget {
        &self.budget
    }

    #[inline]
    fn inner(&self) -> &R {
        &self.source.resource
    }

    fn tree(&self) -> &Tree {
        &self.budget.account.tree
    }

    /// Keeps a deallocated block charged until upstream has freed it.
    #[inline(never)]
    fn retire(&self, entry: Entry) {
        let account = &self.budget.account;
        self.source.push(entry, &account.tree, account.shard());
    }

    /// Remembers what was charged for a block.
    #[inline]
    fn add_charge(&self, place: Place, bytes: u64) {
        if let Some(lost) = self.tree().charges.add(place, bytes) {
            self.release_lost(lost);
        }
    }

    /// Returns where the charge of a block is.
    #[inline]
    fn place(&self, block: &DeviceBlock) -> Place {
        Place::new(self.budget.account.id, block.id(), self.by_slot)
    }

    /// Gives back the charge of a block that was deallocated upstream. Its tag is not known any more.
    #[cold]
    fn release_lost(&self, lost: Lost) {
        self.tree().uncount_bytes(lost.account, AllocTag::OTHER, lost.bytes);
        self.tree().release(lost.account, None, lost.bytes);
    }

    /// Charges `bytes`.
    #[inline]
    pub(super) fn charge(&self, shard: Option<&Shard>, bytes: u64) -> ResourceResult<()> {
        if shard.is_some_and(|shard| shard.take(bytes)) {
            return Ok(());
        }
        self.make_room(shard, bytes)
    }

    /// Charges `bytes` that did not fit at first.
    #[cold]
    fn make_room(&self, shard: Option<&Shard>, bytes: u64) -> ResourceResult<()> {
        let (tree, id) = (self.tree(), self.budget.account.id);
        let mut steps = [Step::TryReap, Step::ReapPending].into_iter();
        let mut step = steps.next();
        loop {
            let releases = tree.releases();
            let refusal = match tree.charge(id, shard, bytes, step.is_none()) {
                Ok(()) => return Ok(()),
                Err(Refused::Oversized(refusal)) => return Err(out_of_budget(refusal, bytes)),
                Err(Refused::Full(refusal)) => refusal,
                Err(Refused::Forked) => {
                    return Err(ResourceError::forked_process(self.inner().device_ordinal()));
                }
            };
            // Bytes that were freed before that instant, and were still charged, might have made it
            // fit: the refusal stands only if there were none.
            tree.poll();
            if tree.releases() != releases {
                continue;
            }
            match (step, refusal) {
                (Some(Step::TryReap), _) => {
                    // Its error is not about this request; the next reap returns it.
                    drop(self.inner().try_reap());
                    tree.try_reap();
                    tree.poll();
                }
                (Some(Step::ReapPending), _) if self.reap_pending && tree.has_pending() => {
                    drop(self.inner().reap_pending());
                    tree.poll();
                }
                (None, Some(refusal)) => return Err(out_of_budget(refusal, bytes)),
                _ => {}
            }
            step = steps.next();
        }
    }
}

/// A step before a request is refused.
#[derive(Clone, Copy, Debug)]
enum Step {
    TryReap,
    ReapPending,
}

/// A charge that is released on drop, unless it is kept: also if upstream panics.
pub(super) struct Charge<'a> {
    pub(super) budget: &'a Budget,
    pub(super) shard: Option<&'a Shard>,
    pub(super) bytes: u64,
}

impl Charge<'_> {
    /// Keeps the charge for a block that has grown by its bytes.
    fn keep_growth(self, tag: AllocTag) {
        let kept = ManuallyDrop::new(self);
        let account = &kept.budget.account;
        account.tree.count_growth(account.id, kept.shard, tag, kept.bytes);
    }

    /// Keeps the charge for a new block, or new memory.
    #[inline]
    pub(super) fn keep(self, tag: AllocTag) {
        let kept = ManuallyDrop::new(self);
        let account = &kept.budget.account;
        account.tree.count(account.id, kept.shard, tag, kept.bytes);
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        let account = &self.budget.account;
        account.tree.release(account.id, self.shard, self.bytes);
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource + 'static> DeviceMemoryResource for GlobalDeviceBudget<R> {
    #[inline]
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let (shard, charged) = (self.budget.account.shard(), bytes as u64);
        self.charge(shard, charged)?;
        let charge = Charge { budget: &self.budget, shard, bytes: charged };
        // Taken apart and put together: so the compiler leaves the block where it is, and does not
        // copy it before its parts have reached the cache.
        match self.inner().allocate(bytes, stream, tag) {
            Ok(block) => {
                charge.keep(tag);
                self.add_charge(self.place(&block), charged);
                Ok(block)
            }
            Err(error) => Err(error),
        }
    }

    #[inline]
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let (id, tag, place) = (block.id(), block.tag(), self.place(&block));
        // First: once the block is deallocated another one may have its slot.
        let own = self.tree().charges.take(place);
        let bytes = own.unwrap_or_else(|| self.budget.account.take_earlier(block.bytes() as u64));
        match self.inner().deallocate(block) {
            Ok(state) if bytes == 0 => Ok(state),
            Ok(BlockState::Freed) => {
                let account = &self.budget.account;
                let shard = account.shard();
                account.tree.uncount(account.id, shard, tag, bytes);
                account.tree.release(account.id, shard, bytes);
                Ok(BlockState::Freed)
            }
            Ok(state) => {
                self.retire(Entry { id, bytes, tag });
                Ok(state)
            }
            Err(refused) => {
                match own {
                    Some(_) => self.add_charge(place, bytes),
                    None => self.budget.account.add_earlier(bytes),
                }
                Err(refused)
            }
        }
    }

    /// Charges the difference first. `false` if that does not fit: a growth that is refused makes no
    /// resource reap, since the caller allocates next, which does.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        if bytes <= block.bytes() {
            return self.inner().try_grow(block, bytes);
        }
        let (account, tag) = (&self.budget.account, block.tag());
        let place = self.place(block);
        let own = account.tree.charges.get(place);
        // All of its size, also the bytes by which it grew upstream.
        let more = (bytes as u64).saturating_sub(own.unwrap_or(block.bytes() as u64));
        let shard = account.shard();
        match account.tree.charge(account.id, shard, more, false) {
            Ok(()) => {}
            Err(Refused::Forked) => {
                return Err(ResourceError::forked_process(self.inner().device_ordinal()));
            }
            Err(Refused::Oversized(_) | Refused::Full(_)) => {
                // A block that upstream refuses is an error, whether or not there is room.
                let own_bytes = block.bytes();
                self.inner().try_grow(block, own_bytes)?;
                return Ok(false);
            }
        }
        let charge = Charge { budget: &self.budget, shard, bytes: more };
        let bytes_before = block.bytes() as u64;
        let grown = self.inner().try_grow(block, bytes)?;
        if grown {
            charge.keep_growth(tag);
            // What was charged for it when the resource was wrapped is its own from now on.
            let earlier = if own.is_none() { account.take_earlier(bytes_before) } else { 0 };
            self.add_charge(place, earlier + more);
        }
        Ok(grown)
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        let reaped = self.inner().try_reap();
        self.source.poll(self.tree());
        reaped
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        let reaped = self.inner().reap_pending();
        self.source.poll(self.tree());
        reaped
    }

    fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        let trimmed = self.inner().trim_to(keep_bytes);
        self.source.poll(self.tree());
        trimmed
    }

    forward!(
        inner: is_retired,
        device_ordinal,
        stream_pool,
        bytes_outstanding,
        usage,
        use_tracking,
    );

    /// Returns the budget's own, which charges for memory that is created.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.inner().virtual_memory().map(|_| self as _)
    }
}

/// The registration of a source in the books of its budget.
struct Registration {
    source: Arc<dyn Polled>,
    budget: Budget,
}

impl Registration {
    fn new<R: DeviceMemoryResource + 'static>(source: &Arc<Source<R>>, budget: &Budget) -> Self {
        let (lists, weak) = (source.lists(), Arc::downgrade(source));
        let account = &budget.account;
        if let Some(mut books) = account.tree.books() {
            books.sources.add(account.id, lists, weak);
        }
        Self { source: Arc::clone(source) as Arc<dyn Polled>, budget: budget.clone() }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.budget.account.tree.leave(&self.source);
    }
}

/// `Budget(8 GiB, Async(device 0))`.
impl<R: DeviceMemoryResource + 'static> fmt::Debug for GlobalDeviceBudget<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, limit) = (self.budget.name(), human_bytes(self.budget.limit()));
        f.write_str("Budget(")?;
        if !name.is_untagged() {
            write!(f, "{:?}, ", name.name())?;
        }
        write!(f, "{limit}, {:?})", self.inner())
    }
}

impl<R: DeviceMemoryResource + 'static> fmt::Display for GlobalDeviceBudget<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
