//! One account, and the shard of the calling thread.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use thread_local::ThreadLocal;

use super::books::AccountId;
use super::shard::Shard;
use super::tree::Tree;

/// An open account of a tree. When it is dropped, nobody can charge it any more.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) tree: Arc<Tree>,
    pub(super) id: AccountId,
    shards: ThreadLocal<Arc<CachePadded<Shard>>>,
    /// An account is open for as long as those below it are.
    _parent: Option<Arc<Self>>,
}

impl Account {
    pub(super) const fn new(tree: Arc<Tree>, id: AccountId, parent: Option<Arc<Self>>) -> Self {
        Self { tree, id, shards: ThreadLocal::new(), _parent: parent }
    }

    /// This thread's shard. A thread that is being torn down has none.
    #[inline]
    pub(super) fn shard(&self) -> Option<&Shard> {
        match self.shards.get() {
            Some(shard) => Some(shard),
            None => self.make_shard(),
        }
    }

    #[cold]
    fn make_shard(&self) -> Option<&Shard> {
        HAS_NUMBER.try_with(|_| ()).ok()?;
        Some(self.shards.get_or(|| self.tree.shard(self.id)))
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.tree.close(self.id);
    }
}

thread_local! {
    /// Made after the number by which `thread_local` finds a thread's values, so that it is gone
    /// before that number is. Without one, asking for it would panic.
    static HAS_NUMBER: Numbered = Numbered::new();
}

struct Numbered;

impl Numbered {
    fn new() -> Self {
        static NUMBER: ThreadLocal<()> = ThreadLocal::new();
        NUMBER.get_or(|| ());
        Self
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        // Something that is dropped is registered: that is what makes it be gone.
    }
}
