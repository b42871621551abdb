//! Blocks that were deallocated and that upstream has not freed yet: charged until it has.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use dmr_core::{AllocTag, BlockId, DeviceMemoryResource, StreamPoolId};

use crate::sync::{AtomicBool, MutexGuard, Ordering, lock};

use super::account::Account;
use super::tree::Tree;

/// The resource below one [`BudgetResource`](super::BudgetResource).
#[derive(Debug)]
pub(super) struct Source {
    /// The account that its blocks are charged to.
    pub(super) account: Arc<Account>,
    /// `None` if it was dropped before it had freed the block.
    resource: Option<Arc<dyn DeviceMemoryResource>>,
    is_dropped: AtomicBool,
}

impl Source {
    pub(super) fn new(account: &Arc<Account>, resource: Arc<dyn DeviceMemoryResource>) -> Self {
        let is_dropped = AtomicBool::new(false);
        Self { account: Arc::clone(account), resource: Some(resource), is_dropped }
    }

    fn is_retired(&self, block: BlockId) -> bool {
        self.resource.as_ref().is_none_or(|resource| resource.is_retired(block))
    }
}

/// A block that is retired: deallocated, and still charged.
#[derive(Debug)]
pub(super) struct Retired {
    pub(super) source: Arc<Source>,
    /// `None` for all blocks that were retired when the resource was wrapped.
    pub(super) id: Option<BlockId>,
    pub(super) bytes: u64,
    pub(super) tag: AllocTag,
}

/// Oldest first; those that were found to be retired still are the youngest.
pub(super) type RetiredBlocks = VecDeque<Retired>;

/// The queue of retired blocks. Its lock is held from the query of a block's state until its bytes
/// are released, so no other thread sees a freed block that is still charged. What is removed is
/// dropped without the lock: it may be the last reference to a resource.
impl Tree {
    /// Locks the queue; `None` in a forked child.
    pub(super) fn retired(&self) -> Option<MutexGuard<'_, RetiredBlocks>> {
        self.retired.current().map(lock)
    }

    /// Adds a block, and polls the two oldest, so that the queue can shrink.
    #[inline(never)]
    pub(super) fn push_retired(&self, block: Retired) {
        let Some(mut queue) = self.retired() else { return };
        let older = queue.len();
        queue.push_back(block);
        // Two polls for one push: the queue shrinks as long as half of its blocks were freed.
        let freed = [0, 1].map(|at| if at < older { self.poll_oldest(&mut queue) } else { None });
        drop(queue);
        drop(freed);
    }

    /// Releases the blocks that upstream has freed, of all resources.
    pub(super) fn poll(&self) {
        let Some(mut queue) = self.retired() else { return };
        self.poll_existing(&mut queue);
        let all = 0..queue.len();
        let freed: Vec<_> = all.filter_map(|_| self.poll_oldest(&mut queue)).collect();
        drop(queue);
        drop(freed);
    }

    /// Removes the oldest block and releases its bytes if the resource has freed it; else it
    /// becomes the youngest. It leaves the queue after the resource has returned, which can panic.
    fn poll_oldest(&self, queue: &mut RetiredBlocks) -> Option<Retired> {
        let oldest = queue.front()?;
        let is_retired = match oldest.id {
            Some(id) => oldest.source.is_retired(id),
            None => oldest.bytes > 0,
        };
        let oldest = queue.pop_front()?;
        if is_retired {
            queue.push_back(oldest);
            return None;
        }
        self.release_reaped(&oldest.source.account, oldest.bytes, oldest.tag);
        Some(oldest)
    }

    /// Releases what was freed of the blocks that were retired when their resource was wrapped:
    /// what the resource has retired, less those that were retired later, is left.
    fn poll_existing(&self, queue: &mut RetiredBlocks) {
        for at in 0..queue.len() {
            let Retired { source, id: None, bytes, tag } = &queue[at] else { continue };
            let Some(resource) = &source.resource else { continue };
            // First: what is freed meanwhile is then still counted here.
            let retired = resource.usage().retired;
            let is_later = |block: &&Retired| {
                let is_retired = |id| source.is_retired(id);
                Arc::ptr_eq(&block.source, source) && block.id.is_some_and(is_retired)
            };
            let later: u64 = queue.iter().filter(is_later).map(|block| block.bytes).sum();
            let left = retired.saturating_sub(later).min(*bytes);
            self.release_reaped(&source.account, bytes - left, *tag);
            queue[at].bytes = left;
        }
    }

    /// Calls `try_reap` of all resources that have retired blocks.
    pub(super) fn try_reap(&self) {
        let mut sources: Vec<_> = self
            .retired()
            .map(|queue| queue.iter().map(|block| Arc::clone(&block.source)).collect())
            .unwrap_or_default();
        sources.sort_by_key(Arc::as_ptr);
        sources.dedup_by(|a, b| Arc::ptr_eq(a, b));
        for resource in sources.iter().filter_map(|source| source.resource.as_ref()) {
            // The error belongs to earlier work, not to this request.
            drop(resource.try_reap());
        }
    }

    /// Returns the bytes of retired blocks that are charged to an account or below it; with
    /// `streams`, of those resources only.
    pub(super) fn retired_bytes(
        &self,
        account: &Arc<Account>,
        streams: Option<StreamPoolId>,
    ) -> u64 {
        let Some(queue) = self.retired() else { return 0 };
        let counts = |source: &Source| {
            let own = source.resource.as_ref().map(|resource| resource.stream_pool());
            source.account.is_within(account) && (streams.is_none() || streams == own)
        };
        queue.iter().filter(|block| counts(&block.source)).map(|block| block.bytes).sum()
    }

    /// Ends the use of a resource by its budget. The queue keeps it until its retired blocks are
    /// freed, as long as there is a [`Budget`](super::Budget).
    pub(super) fn drop_source(&self, source: &Source) {
        self.poll();
        source.is_dropped.store(true, Ordering::Release);
        if self.handles.load(Ordering::Acquire) == 0 {
            self.drop_kept_resources();
        }
    }

    /// Drops the resources that are kept for their retired blocks; what is retired then stays
    /// charged. They can contain budgets that keep the tree alive, so no other call is sure to
    /// follow.
    #[cold]
    pub(super) fn drop_kept_resources(&self) {
        let Some(mut queue) = self.retired() else { return };
        let is_kept = |block: &&mut Retired| {
            let Source { resource, is_dropped, .. } = &*block.source;
            resource.is_some() && is_dropped.load(Ordering::Acquire)
        };
        let drop_one = |block: &mut Retired| {
            let account = Arc::clone(&block.source.account);
            let is_dropped = AtomicBool::new(true);
            let without = Source { account, resource: None, is_dropped };
            mem::replace(&mut block.source, Arc::new(without))
        };
        let kept: Vec<_> = queue.iter_mut().filter(is_kept).map(drop_one).collect();
        drop(queue);
        drop(kept);
    }
}
