//! [`Budget`]: the handle to an account, and the budget of each physical GPU.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use dmr_core::AllocTag;
use dmr_core::error::Holder;
use dmr_core::process::PerProcess;
use dmr_core::size::human_bytes;

use crate::sync::{Ordering, lock};

use super::account::Account;
use super::tree::Tree;

/// A limit on bytes, shared by all clones of it and by every
/// [`BudgetResource`](super::BudgetResource) that charges it.
///
/// All numbers are bytes as requested. Bytes are *charged* from before the upstream resource is
/// called until it has freed the block: blocks that are live, and blocks that were deallocated and
/// are retired. What is charged never exceeds the limit, except by blocks that were outstanding
/// before the budget and after the limit was lowered; then nothing is granted until it fits. Limits
/// and requests above 2⁶³ - 1 bytes count as that.
///
/// A budget can have parts ([`sub_budget`](Self::sub_budget), [`reserve`](Self::reserve)): what is
/// charged to a part is charged to the whole as well, at the same instant.
///
/// In a forked child of the process that made it, which has no GPU memory, all its numbers are 0
/// and nothing is granted.
pub struct Budget {
    pub(super) tree: Arc<Tree>,
    pub(super) account: Arc<Account>,
}

impl Budget {
    /// Makes a budget of `limit` bytes. A limit above 2⁶³ − 1 bytes is lowered to that.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self::of(&Arc::new(Tree::new(limit, None)))
    }

    /// Returns the budget of a physical GPU: one per UUID in the process, for all runtimes and CUDA
    /// ordinals that reach the GPU. It exists as long as a handle to it or to a part of it does.
    ///
    /// The first call sets the limit, in bytes. A later call with a lower limit lowers it for all;
    /// one with a higher limit changes nothing, so that no caller loosens the limit of another.
    /// [`set_limit`](Self::set_limit) can raise it.
    #[must_use]
    pub fn for_device(uuid: [u8; 16], limit: u64) -> Self {
        /// The budgets that still exist.
        static BY_UUID: PerProcess<Mutex<HashMap<[u8; 16], Weak<Tree>>>> =
            PerProcess::new(Mutex::default);

        let mut budgets = dmr_core::sync::lock(BY_UUID.get());
        if let Some(tree) = budgets.get(&uuid).and_then(Weak::upgrade) {
            let budget = Self::of(&tree);
            budget.tree.set_limit(&budget.account, |current| current.min(limit));
            return budget;
        }
        let budget = Self::new(limit);
        budgets.retain(|_, tree| tree.strong_count() > 0);
        budgets.insert(uuid, Arc::downgrade(&budget.tree));
        budget
    }

    /// Returns a handle to the root of a tree.
    pub(super) fn of(tree: &Arc<Tree>) -> Self {
        Self::new_handle(tree, Arc::clone(&tree.root))
    }

    pub(super) fn new_handle(tree: &Arc<Tree>, account: Arc<Account>) -> Self {
        tree.handles.fetch_add(1, Ordering::Relaxed);
        Self { tree: Arc::clone(tree), account }
    }

    /// Sets the name that messages use; it is also the name of its clones.
    #[must_use]
    pub fn named(self, name: AllocTag) -> Self {
        if !self.tree.is_forked() {
            *lock(&self.account.name) = name;
        }
        self
    }

    /// Makes a named share of this budget: at most `limit` bytes, and never more than this budget
    /// and those above it have left. The limit may be larger than this one's, and the limits of
    /// several shares may add up to more: nothing is set aside.
    ///
    /// Blocks that outlive the share and everything that charges it stay charged to this budget
    /// until they are freed.
    #[must_use]
    pub fn sub_budget(&self, name: AllocTag, limit: u64) -> Self {
        let added = self.tree.lock().map(|mut state| {
            let part = self.tree.add(&mut state, &self.account, name, limit);
            Self::new_handle(&self.tree, part)
        });
        // In a forked child every budget is the same.
        added.unwrap_or_else(|| self.clone())
    }

    /// Returns the name; untagged if it has none.
    #[must_use]
    pub fn name(&self) -> AllocTag {
        if self.tree.is_forked() { AllocTag::UNTAGGED } else { *lock(&self.account.name) }
    }

    /// Returns whether both are the same budget, or parts of the same one: a block that passes
    /// through both is then charged to it twice.
    #[must_use]
    pub fn shares_root_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tree, &other.tree)
    }

    /// Returns the limit, in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        if self.tree.is_forked() {
            return 0;
        }
        let outer = self.tree.outer.iter().filter(|_| self.account.parent.is_none());
        outer.map(|outer| outer.limit()).fold(self.account.limit(), u64::min)
    }

    /// Sets the limit, in bytes; that of a reservation to at most its bytes. After this has
    /// returned, nothing is granted that does not fit; if more is charged already, nothing is
    /// granted at all until it fits. A limit above 2⁶³ − 1 bytes is lowered to that.
    pub fn set_limit(&self, limit: u64) {
        self.tree.set_limit(&self.account, |_| limit);
    }

    /// Returns the bytes that are charged: live, retired, and reserved by
    /// [`reserve`](Self::reserve). Bytes of calls in progress count.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.tree.lock().map_or(0, |_state| self.account.charged())
    }

    /// Returns the bytes that are left, of this budget and of all that it is a part of. For a limit
    /// that processes share it reads their account, and waits for that for at most 50 ms: 0 if it
    /// cannot be read then.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.tree.remaining(&self.account)
    }

    /// Returns the bytes charged for blocks that were deallocated and that were still retired when
    /// the budget last polled them.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.tree.retired_bytes(&self.account, None)
    }

    /// Returns the bytes and blocks of each tag, most bytes first, with those of all parts. What a
    /// part has reserved and not used is held by `(reserved)`; blocks that were outstanding before
    /// the budget by `(before the budget)`. Exact while no call is in progress.
    ///
    /// Reads the charge of every block. A process has 4,096 tags, or a few less; later ones are
    /// [`AllocTag::OTHER`].
    #[must_use]
    pub fn holders(&self) -> Vec<Holder> {
        self.tree.holders(&self.account)
    }
}

impl Clone for Budget {
    fn clone(&self) -> Self {
        Self::new_handle(&self.tree, Arc::clone(&self.account))
    }
}

/// The last handle to a budget or a part of it drops the resources that are kept for retired
/// blocks.
impl Drop for Budget {
    fn drop(&mut self) {
        if self.tree.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.tree.drop_kept_resources();
        }
    }
}

/// `Budget("tenant", 3 GiB of 8 GiB)`.
impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        let used = human_bytes(self.reserved_bytes());
        f.write_str("Budget(")?;
        if !name.is_untagged() {
            write!(f, "{:?}, ", name.name())?;
        }
        write!(f, "{used} of {})", human_bytes(self.limit()))
    }
}
