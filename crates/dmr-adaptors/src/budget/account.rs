//! One account, and the shard of the calling thread.

use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use dmr_core::process::LeakedInChild;

use super::books::AccountId;
use super::shard::Shard;
use super::tree::Tree;
use crate::per_thread::PerThread;
use crate::sync::{AtomicU64, Ordering};

/// An open account of a tree. Once it is dropped, nothing can be charged to it.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) tree: Arc<Tree>,
    pub(super) id: AccountId,
    shards: LeakedInChild<PerThread<Own>>,
    /// Charged for blocks that were live when a resource was wrapped, in bytes.
    earlier: AtomicU64,
    /// An account is open for as long as those below it are.
    _parent: Option<Arc<Self>>,
}

/// A thread's shard, made when the thread charges the account for the first time.
type Own = OnceLock<Arc<CachePadded<Shard>>>;

impl Account {
    pub(super) fn new(tree: Arc<Tree>, id: AccountId, parent: Option<Arc<Self>>) -> Self {
        let (shards, earlier) = (LeakedInChild::new(PerThread::new()), AtomicU64::new(0));
        Self { tree, id, shards, earlier, _parent: parent }
    }

    /// This thread's shard. A thread that is being torn down has none.
    #[inline]
    pub(super) fn shard(&self) -> Option<&Shard> {
        let own = self.shards.own()?;
        Some(own.get().unwrap_or_else(|| self.make_shard(own)))
    }

    /// Adds to what was charged for blocks that were live before.
    #[cold]
    pub(super) fn add_earlier(&self, bytes: u64) {
        self.earlier.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes up to `bytes` bytes of what was charged for blocks that were live before: for a block that
    /// was charged nothing of its own.
    #[cold]
    pub(super) fn take_earlier(&self, bytes: u64) -> u64 {
        let less = |earlier: u64| Some(earlier.saturating_sub(bytes));
        let before = self.earlier.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        before.map_or(0, |before| before.min(bytes))
    }

    #[cold]
    fn make_shard<'a>(&self, own: &'a Own) -> &'a Arc<CachePadded<Shard>> {
        own.get_or_init(|| self.tree.shard(self.id))
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.tree.close(self.id);
    }
}
