//! [`BudgetResource`]: a resource that charges a budget for each block that it allocates.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use dmr_core::size::human_bytes;
use dmr_core::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    DriverAllocation, ResourceError, ResourceResult, StreamId, StreamPoolId, VirtualMemory,
    forward, panics,
};
use dmr_recorder::Refused;
use dmr_recorder::hooks;

use super::Budget;
use super::account::{Account, MAX_BYTES, signed};
use super::charges::{Item, Key};
use super::retired::{Retired, Source};
use super::tree::{EXISTING, Tree};

/// Bounds what passes through it until it is freed: a hard limit on live and retired bytes.
///
/// The limit is kept at every instant, under any number of threads: bytes are charged before the
/// upstream resource is called, and released after it has freed them. An allocation that is in
/// progress counts, even if upstream refuses it in the end.
///
/// # When a request is refused
///
/// A request larger than the limit is refused at once, without a reap, and so is one whose shared
/// account cannot be used. Any other is refused only if at some instant during the call it did not
/// fit, and after
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
/// not, and a block is charged until its quarantine is over. A stack with two budgets of one tree
/// charges the tree twice.
///
/// # Calls that bypass it
///
/// A block that is allocated or grown directly upstream, with [`upstream`](Self::upstream) or a
/// clone of an `Arc`, is not charged, and the limit does not bound it. A block releases what its
/// budget was charged for it: nothing if it was allocated upstream or by another budget, and not
/// the bytes by which it grew there. When a block grows through the budget, it is charged for all
/// of its size. A block that is deallocated upstream stays charged until another block of the
/// budget gets its slot in the use table; without use tracking, as long as the budget lives.
///
/// # If upstream panics
///
/// A block whose deallocation panics is charged until upstream reports that it is not retired.
/// Memory that upstream has leaked by then is not charged any more.
///
/// # Dropping it
///
/// Does not wait. If blocks are still retired, the upstream resource is kept until they are freed,
/// or until there is no [`Budget`] any more: no handle to the account, nor to one that it is a part
/// of or that is a part of it. Blocks that are retired then stay charged as long as a resource
/// charges the budget, and so do live blocks.
///
/// # Cost
///
/// An allocation and a free take one lock each, which few threads share while the room suffices for
/// leases of all of them, and write the charge to an entry of the block's slot. Near the limit they
/// take a second lock, which all threads share, and so they do once after a number was read from
/// the budget. In a part of a budget
/// ([`sub_budget`](Budget::sub_budget), [`reserve`](Budget::reserve)) they also take a lock of the
/// whole budget. Blocks without a slot in a use table are charged in a map with a lock.
pub struct BudgetResource<R: DeviceMemoryResource + 'static> {
    resource: Arc<R>,
    /// The resource again, as the queue of retired blocks has it.
    source: Arc<Source>,
    pub(super) tree: Arc<Tree>,
    pub(super) account: Arc<Account>,
    streams: StreamPoolId,
    /// `true` if the charge of a block is found by the block's slot.
    by_slot: bool,
    reap_pending: bool,
}

impl<R: DeviceMemoryResource + 'static> BudgetResource<R> {
    pub(super) fn new(
        upstream: R,
        budget: &Budget,
        reap_pending: bool,
        charge_existing: bool,
    ) -> Self {
        let wrapped = Self::wrap(Arc::new(upstream), budget, reap_pending);
        if charge_existing {
            wrapped.charge_existing();
        }
        wrapped
    }

    fn wrap(resource: Arc<R>, budget: &Budget, reap_pending: bool) -> Self {
        let tree = Arc::clone(&budget.tree);
        let account = Arc::clone(&budget.account);
        let source = Arc::new(Source::new(&account, Arc::clone(&resource) as _));
        let streams = resource.stream_pool();
        let by_slot = tree.charges.add_resource(streams);
        Self { resource, source, tree, account, streams, by_slot, reap_pending }
    }

    /// Charges what is outstanding upstream and not charged yet.
    fn charge_existing(&self) {
        let usage = self.resource.usage();
        let Self { tree, account, .. } = self;
        let live = usage.live.saturating_sub(tree.live_bytes(account, self.streams));
        let retired = tree.retired_bytes(account, Some(self.streams));
        let retired = usage.retired.saturating_sub(retired).min(MAX_BYTES);
        if live > 0 {
            tree.adjust(account, signed(live), EXISTING);
            self.add_charge(self.key(Item::Existing), live.min(MAX_BYTES), EXISTING);
        }
        if retired > 0 {
            tree.adjust(account, signed(retired), EXISTING);
            self.push_retired(None, retired, EXISTING);
        }
    }

    fn push_retired(&self, id: Option<BlockId>, bytes: u64, tag: AllocTag) {
        let source = Arc::clone(&self.source);
        self.tree.push_retired(Retired { source, id, bytes, tag });
    }

    /// Returns the upstream resource, which charges no budget any more. Live blocks stay charged,
    /// as when this is dropped.
    ///
    /// # Errors
    ///
    /// This, unchanged: deallocated blocks are still retired, or another thread polls them.
    /// Call [`reap_pending`](DeviceMemoryResource::reap_pending), and try again.
    pub fn into_upstream(self) -> Result<R, Self> {
        self.tree.poll();
        // The queue of retired blocks has the other references.
        if Arc::strong_count(&self.source) > 1 {
            return Err(self);
        }
        let resource = Arc::clone(&self.resource);
        let budget = self.budget();
        let reap_pending = self.reap_pending;
        drop(self);
        let unshared = Arc::try_unwrap(resource);
        unshared.map_err(|resource| Self::wrap(resource, &budget, reap_pending))
    }

    /// Returns the upstream resource. What it allocates when it is called directly is not charged.
    #[must_use]
    #[inline]
    pub fn upstream(&self) -> &R {
        &self.resource
    }

    /// Returns a handle to the budget that this charges.
    #[must_use]
    pub fn budget(&self) -> Budget {
        Budget::new_handle(&self.tree, Arc::clone(&self.account))
    }

    /// Returns the key of what this budget is charged for an item of its resource.
    #[inline]
    pub(super) fn key(&self, item: Item) -> Key {
        Key { account: self.account.id, streams: self.streams, item }
    }

    #[inline]
    fn key_of(&self, block: &DeviceBlock) -> Key {
        let slot = block.id().slot().index().filter(|_| self.by_slot);
        self.key(Item::Block(block.generation(), slot))
    }

    /// Adds to the charge of an item.
    #[inline]
    pub(super) fn add_charge(&self, key: Key, bytes: u64, tag: AllocTag) {
        if let Some(stale) = self.tree.charges.add(key, bytes, tag) {
            self.tree.release_stale(stale);
        }
    }

    /// Removes the charge of a block that is about to leave the resource, because another one may
    /// have its slot then.
    #[inline]
    fn remove_charge(&self, block: &DeviceBlock) -> RemovedCharge<'_, R> {
        let budget = self;
        let id = block.id();
        let key = self.key_of(block);
        match self.tree.charges.remove(key, u64::MAX) {
            Some(bytes) => RemovedCharge { budget, id, key, bytes, tag: block.tag() },
            None => {
                let bytes = self.remove_existing(block.bytes());
                let key = self.key(Item::Existing);
                RemovedCharge { budget, id, key, bytes, tag: EXISTING }
            }
        }
    }

    /// Removes up to `bytes` bytes of the charge of existing blocks.
    #[cold]
    fn remove_existing(&self, bytes: usize) -> u64 {
        let key = self.key(Item::Existing);
        self.tree.charges.remove(key, bytes as u64).unwrap_or(0)
    }

    /// Charges `bytes`, after making room for them if need be.
    #[inline]
    pub(super) fn charge(&self, bytes: u64, tag: AllocTag) -> ResourceResult<ChargeGuard<'_>> {
        let Self { tree, account, .. } = self;
        if !tree.try_charge(account, bytes) {
            self.charge_slowly(bytes, tag)?;
        }
        Ok(ChargeGuard { tree, account, bytes, tag })
    }

    /// Records that this budget has refused an allocation. Not the pages of a pool, which records
    /// its own refusals.
    #[cold]
    fn record_refusal(&self, bytes: usize, stream: StreamId, tag: AllocTag, error: &ResourceError) {
        if !matches!(error, ResourceError::OutOfBudget { .. }) {
            return;
        }
        let default = || StreamId::from_parts(self.streams, 0, 0);
        let stream = if stream.is_default() { default() } else { Some(stream) };
        let bytes = bytes as u64;
        hooks::refused(|| Refused { bytes, stream, tag, ..Refused::by(error) });
    }

    #[inline(never)]
    fn charge_slowly(&self, bytes: u64, tag: AllocTag) -> ResourceResult<()> {
        let Self { tree, account, resource, .. } = self;
        tree.check(resource.device_ordinal())?;
        let make_room = |calls| {
            match calls {
                0 => {
                    // Its error is not about this request; the next reap returns it.
                    drop(resource.try_reap());
                    tree.try_reap();
                }
                1 if self.reap_pending && tree.retired_bytes(&tree.root, None) > 0 => {
                    drop(resource.reap_pending());
                }
                _ => {}
            }
            calls < 2
        };
        let charge = || tree.charge(account, bytes, tag, None);
        let charged = tree.retry(account, bytes, charge, make_room);
        charged.map_err(|refused| tree.error(refused, bytes))
    }
}

/// The charge of a block that upstream is asked to take, which is not in the budget's charges. If
/// upstream panics, dropping this treats the block as one that upstream has taken.
struct RemovedCharge<'a, R: DeviceMemoryResource + 'static> {
    budget: &'a BudgetResource<R>,
    id: BlockId,
    /// The item that was charged.
    key: Key,
    bytes: u64,
    tag: AllocTag,
}

impl<R: DeviceMemoryResource + 'static> RemovedCharge<'_, R> {
    /// Releases the charge: the block is freed.
    #[inline]
    fn release(self) {
        let Self { budget, bytes, tag, .. } = *ManuallyDrop::new(self);
        if bytes > 0 {
            budget.tree.release(&budget.account, bytes, tag);
        }
    }

    /// Keeps the charge until upstream has freed the block.
    #[inline]
    fn retire(self) {
        ManuallyDrop::new(self).push_retired();
    }

    /// Charges again for a block that has not left the resource.
    #[cold]
    fn restore(self) {
        let Self { budget, key, bytes, tag, .. } = *ManuallyDrop::new(self);
        if bytes > 0 {
            budget.add_charge(key, bytes, tag);
        }
    }

    fn push_retired(&self) {
        if self.bytes > 0 {
            self.budget.push_retired(Some(self.id), self.bytes, self.tag);
        }
    }
}

impl<R: DeviceMemoryResource + 'static> Drop for RemovedCharge<'_, R> {
    #[cold]
    fn drop(&mut self) {
        // Upstream may panic again when it is asked about its blocks.
        let _ = panics::catch(|| self.push_retired());
    }
}

/// A charge that is released on drop, unless it is kept: upstream may fail, or panic.
pub(super) struct ChargeGuard<'a> {
    tree: &'a Tree,
    account: &'a Arc<Account>,
    bytes: u64,
    tag: AllocTag,
}

impl ChargeGuard<'_> {
    /// Keeps the charge.
    #[inline]
    pub(super) fn keep(self) {
        let _kept = ManuallyDrop::new(self);
    }
}

impl Drop for ChargeGuard<'_> {
    fn drop(&mut self) {
        self.tree.release(self.account, self.bytes, self.tag);
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource + 'static> DeviceMemoryResource for BudgetResource<R> {
    #[inline]
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let charged = (bytes as u64).min(MAX_BYTES);
        let charge = self.charge(charged, tag);
        let charge = charge.inspect_err(|error| self.record_refusal(bytes, stream, tag, error))?;
        // Match and rebuild the result so that the block is returned in place (saves a copy).
        match self.resource.allocate(bytes, stream, tag) {
            Ok(block) => {
                charge.keep();
                self.account.record_peak(charged);
                self.add_charge(self.key_of(&block), charged, tag);
                Ok(block)
            }
            Err(error) => Err(error),
        }
    }

    #[inline]
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let removed = self.remove_charge(&block);
        match self.resource.deallocate(block) {
            Ok(BlockState::Freed) => {
                removed.release();
                Ok(BlockState::Freed)
            }
            Ok(state) => {
                removed.retire();
                Ok(state)
            }
            Err(refused) => {
                removed.restore();
                Err(refused)
            }
        }
    }

    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        let removed = self.remove_charge(&block);
        match self.resource.give_away(block) {
            Ok(given) => {
                removed.release();
                Ok(given)
            }
            Err(refused) => {
                removed.restore();
                Err(refused)
            }
        }
    }

    /// Charges the difference first. `false` if that does not fit: a growth that is refused makes
    /// no resource reap, since the caller allocates next, which does.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        if bytes <= block.bytes() {
            return self.resource.try_grow(block, bytes);
        }
        let Self { tree, account, resource, .. } = self;
        let key = self.key_of(block);
        let tag = block.tag();
        let bytes_before = block.bytes();
        let own = tree.charges.get(key);
        // For all of its size, even if it grew upstream.
        let charged = (bytes as u64).min(MAX_BYTES);
        let more = charged.saturating_sub(own.unwrap_or(bytes_before as u64));
        if !tree.try_charge(account, more) {
            tree.check(resource.device_ordinal())?;
            match tree.charge(account, more, tag, None) {
                Ok(()) => {}
                Err(refused) if refused.is_final() => return Err(tree.error(refused, more)),
                Err(_) => {
                    // A block that upstream refuses is an error, whether or not there is room.
                    resource.try_grow(block, bytes_before)?;
                    return Ok(false);
                }
            }
        }
        let charge = ChargeGuard { tree, account, bytes: more, tag };
        let grown = self.resource.try_grow(block, bytes)?;
        if grown {
            charge.keep();
            // What was charged for it when the resource was wrapped is its own from now on.
            let existing = if own.is_none() { self.remove_existing(bytes_before) } else { 0 };
            self.add_charge(key, existing + more, tag);
        }
        Ok(grown)
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        let reaped = self.resource.try_reap();
        self.tree.poll();
        reaped
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        let reaped = self.resource.reap_pending();
        self.tree.poll();
        reaped
    }

    fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        let trimmed = self.resource.trim_to(keep_bytes);
        self.tree.poll();
        trimmed
    }

    forward!(
        upstream(): is_retired,
        device_ordinal,
        stream_pool,
        bytes_outstanding,
        usage,
        allow_access,
        use_tracking,
    );

    /// Returns the budget's own, which charges for memory that is created.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.resource.virtual_memory().map(|_| self as _)
    }
}

impl<R: DeviceMemoryResource + 'static> Drop for BudgetResource<R> {
    fn drop(&mut self) {
        self.tree.drop_source(&self.source);
    }
}

/// `Budget(8 GiB, Async(device 0))`.
impl<R: DeviceMemoryResource + 'static> fmt::Debug for BudgetResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let budget = self.budget();
        let name = budget.name();
        let limit = human_bytes(budget.limit());
        f.write_str("Budget(")?;
        if !name.is_untagged() {
            write!(f, "{:?}, ", name.name())?;
        }
        write!(f, "{limit}, {:?})", self.resource)
    }
}

impl<R: DeviceMemoryResource + 'static> fmt::Display for BudgetResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
