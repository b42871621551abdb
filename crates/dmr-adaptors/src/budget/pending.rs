//! Blocks that were deallocated and are still retired upstream: charged until upstream frees them.

use std::collections::VecDeque;
use std::sync::Arc;

use dmr_core::process::LeakedInChild;
use dmr_core::{AllocTag, BlockId, DeviceMemoryResource, StreamPoolId};

use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

use super::account::Account;
use super::tree::Tree;

/// A block that was deallocated and is still charged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// `None` for all blocks that were retired when the resource was wrapped.
    pub(super) id: Option<BlockId>,
    pub(super) bytes: u64,
    pub(super) tag: AllocTag,
}

/// Pending blocks that are checked for each block added: two, so that the queue can shrink.
const POLLED_PER_PUSH: usize = 2;

/// The pending blocks of one resource, oldest first.
///
/// The lock is held from the query of a block's state until its bytes are released, so no other
/// thread sees a freed block that is still charged.
#[derive(Debug)]
pub(super) struct PendingBlocks {
    pub(super) account: Arc<Account>,
    resource: Arc<dyn DeviceMemoryResource>,
    queue: LeakedInChild<Mutex<VecDeque<Pending>>>,
    /// Bytes of the queue. Lowered after the bytes are released.
    bytes: AtomicU64,
    is_dropped: AtomicBool,
}

impl PendingBlocks {
    pub(super) fn new(account: &Arc<Account>, resource: Arc<dyn DeviceMemoryResource>) -> Self {
        let (account, queue) = (Arc::clone(account), LeakedInChild::default());
        let (bytes, is_dropped) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { account, resource, queue, bytes, is_dropped }
    }

    /// Returns the pool whose streams the resource accepts.
    pub(super) fn streams(&self) -> StreamPoolId {
        self.resource.stream_pool()
    }

    /// Marks the budget around the resource as dropped.
    pub(super) fn set_dropped(&self) {
        self.is_dropped.store(true, Ordering::Release);
    }

    /// Returns whether the budget was dropped and no block is pending.
    pub(super) fn is_finished(&self) -> bool {
        self.is_dropped.load(Ordering::Acquire) && self.bytes() == 0
    }

    /// Adds a block, and releases the oldest ones that are freed. Does nothing in a forked child.
    #[inline(never)]
    pub(super) fn push(&self, block: Pending, tree: &Tree) {
        // Another thread may have held the lock when the process was forked.
        if tree.is_forked() {
            return;
        }
        let mut queue = lock(&self.queue);
        let oldest = POLLED_PER_PUSH.min(queue.len());
        queue.push_back(block);
        self.bytes.fetch_add(block.bytes, Ordering::Release);
        self.poll_oldest(&mut queue, oldest, tree);
    }

    /// Releases the blocks that the resource has freed.
    pub(super) fn poll(&self, tree: &Tree) {
        if !tree.is_forked() && self.bytes() > 0 {
            let mut queue = lock(&self.queue);
            let all = queue.len();
            let has_existing = queue.iter().any(|block| block.id.is_none());
            // First: what is freed meanwhile is then still counted here.
            let retired = if has_existing { self.resource.usage().retired } else { 0 };
            self.poll_oldest(&mut queue, all, tree);
            if let Some(existing) = queue.iter_mut().find(|block| block.id.is_none()) {
                let later = self.bytes().saturating_sub(existing.bytes);
                let freed = existing.bytes.saturating_sub(retired.saturating_sub(later));
                existing.bytes -= freed;
                if freed > 0 {
                    tree.release(&self.account, freed, existing.tag);
                    tree.count_reaped();
                    self.bytes.fetch_sub(freed, Ordering::Release);
                }
            }
        }
    }

    /// Looks at the oldest blocks, and releases those that the resource has freed; the others become
    /// the youngest. A block leaves the queue after the resource has returned, which can panic.
    fn poll_oldest(&self, queue: &mut VecDeque<Pending>, count: usize, tree: &Tree) {
        for _ in 0..count {
            let Some(oldest) = queue.front() else { return };
            let is_retired = match oldest.id {
                Some(id) => self.resource.is_retired(id),
                None => self.resource.usage().retired > 0,
            };
            let Some(oldest) = queue.pop_front() else { return };
            if is_retired {
                queue.push_back(oldest);
            } else {
                tree.release(&self.account, oldest.bytes, oldest.tag);
                tree.count_reaped();
                self.bytes.fetch_sub(oldest.bytes, Ordering::Release);
            }
        }
    }

    /// Calls `try_reap` of the resource if blocks are pending.
    pub(super) fn try_reap(&self) {
        if self.bytes() > 0 {
            // The error belongs to earlier work, not to this request.
            drop(self.resource.try_reap());
        }
    }

    /// Returns the bytes of all pending blocks.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Calls `visit` for every pending block.
    pub(super) fn for_each(&self, visit: impl FnMut(&Pending)) {
        lock(&self.queue).iter().for_each(visit);
    }
}
