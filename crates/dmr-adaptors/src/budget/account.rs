//! One account, and the shard of the calling thread.

use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use dmr_core::process::LeakedInChild;

use super::books::AccountId;
use super::shard::Shard;
use super::tree::Tree;
use crate::per_thread::PerThread;

/// An open account of a tree. When it is dropped, nobody can charge it any more.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) tree: Arc<Tree>,
    pub(super) id: AccountId,
    shards: LeakedInChild<PerThread<Own>>,
    /// An account is open for as long as those below it are.
    _parent: Option<Arc<Self>>,
}

/// A thread's shard, made when the thread charges the account for the first time.
type Own = OnceLock<Arc<CachePadded<Shard>>>;

impl Account {
    pub(super) fn new(tree: Arc<Tree>, id: AccountId, parent: Option<Arc<Self>>) -> Self {
        Self { tree, id, shards: LeakedInChild::new(PerThread::new()), _parent: parent }
    }

    /// This thread's shard. A thread that is being torn down has none.
    #[inline]
    pub(super) fn shard(&self) -> Option<&Shard> {
        let own = self.shards.own()?;
        Some(own.get().unwrap_or_else(|| self.make_shard(own)))
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
