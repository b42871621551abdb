//! [`Budget`]: the handle to an account.

use std::fmt;
use std::sync::Arc;

use dmr_core::AllocTag;
use dmr_core::error::Holder;
use dmr_core::size::human_bytes;

use super::account::Account;
use super::books::{Books, ROOT};
use super::tree::Tree;
use crate::sync::MutexGuard;

/// A limit on bytes, shared by all clones of it and by every
/// [`GlobalDeviceBudget`](super::GlobalDeviceBudget) that charges it.
///
/// All numbers are bytes as asked for. Bytes are *charged* from before the resource below is asked
/// for them until it has let go of the block: blocks that are handed out and blocks that were
/// given back and are retired. What is charged never exceeds the limit, except by what was there
/// before and after the limit was lowered; then nothing is granted until it fits.
///
/// A budget can have parts ([`sub_budget`](Self::sub_budget), [`reserve`](Self::reserve)): what is
/// charged to a part is charged to the whole as well, under one lock and at one instant.
///
/// In a forked child of the process that made it, which has no GPU memory, all its numbers are 0
/// and nothing is granted.
#[derive(Clone)]
pub struct Budget {
    pub(super) account: Arc<Account>,
}

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let account = Account::new(Arc::new(Tree::new(limit)), ROOT, None);
        Self { account: Arc::new(account) }
    }

    /// Gives it a name, for messages; also as seen through its clones.
    #[must_use]
    pub fn named(self, name: AllocTag) -> Self {
        if let Some(mut books) = self.books() {
            books.set_name(self.account.id, name);
        }
        self
    }

    /// A named share of this budget: at most `limit` bytes, and never more than this budget and
    /// those above it have left. The limit may be larger than this one's, and the limits of
    /// several shares may add up to more: nothing is set aside.
    ///
    /// Blocks that outlive the share and everything that charges it stay charged to this budget
    /// until they are freed.
    #[must_use]
    pub fn sub_budget(&self, name: AllocTag, limit: u64) -> Self {
        let add =
            |mut books: MutexGuard<'_, Books>| books.add(Some(self.account.id), name, limit, 0);
        self.part(|tree| tree.books().map_or(ROOT, add))
    }

    /// An account that `add` has added below this one.
    pub(super) fn part(&self, add: impl FnOnce(&Tree) -> u64) -> Self {
        let tree = Arc::clone(&self.account.tree);
        let id = add(&tree);
        let parent = Some(Arc::clone(&self.account));
        Self { account: Arc::new(Account::new(tree, id, parent)) }
    }

    /// The books of the tree; `None` in a forked child.
    fn books(&self) -> Option<MutexGuard<'_, Books>> {
        self.account.tree.books()
    }

    /// Its name; untagged if it has none.
    #[must_use]
    pub fn name(&self) -> AllocTag {
        self.books().map_or(AllocTag::UNTAGGED, |books| books.name(self.account.id))
    }

    /// The limit, in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.books().map_or(0, |books| books.limit(self.account.id))
    }

    /// Sets the limit, in bytes. After this has returned, nothing is granted that does not fit;
    /// if more is charged already, nothing is granted at all until it fits.
    pub fn set_limit(&self, limit: u64) {
        if let Some(mut books) = self.books() {
            books.set_limit(self.account.id, limit);
            self.account.tree.tell_waiters(&books);
        }
    }

    /// Lowers the limit, unless it is lower already.
    pub(super) fn limit_to(&self, limit: u64) {
        let Some(mut books) = self.books() else { return };
        if limit < books.limit(self.account.id) {
            books.set_limit(self.account.id, limit);
        }
    }

    /// Bytes that are charged now: live, retired, and reserved by [`reserve`](Self::reserve).
    ///
    /// Exact at every quiescent moment; while calls are under way, of a moment during this call or
    /// off by what they are about.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.books().map_or(0, |mut books| books.position(self.account.id).0)
    }

    /// Bytes that are left, of this budget and of all that it is a part of. Exact as
    /// [`reserved_bytes`](Self::reserved_bytes).
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.books().map_or(0, |mut books| books.position(self.account.id).1)
    }

    /// Bytes that are charged for blocks that were given back, and that were still retired when
    /// the budget last looked. Exact as [`reserved_bytes`](Self::reserved_bytes).
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        let Some(books) = self.books() else { return 0 };
        books.sources.pending(|account| books.is_within(account, self.account.id))
    }

    /// Who holds how much, by tag, most bytes first; with the holders of all its parts. What a
    /// part has reserved and not used is held by `(reserved)`; what was out before, by
    /// `(before the budget)`. Exact as [`reserved_bytes`](Self::reserved_bytes).
    ///
    /// Each thread counts up to 64 tags apart, the others as [`AllocTag::OTHER`].
    #[must_use]
    pub fn holders(&self) -> Vec<Holder> {
        let Some(mut books) = self.books() else { return Vec::new() };
        books.settle();
        books.holders(self.account.id)
    }
}

/// `Budget("tenant", 3 GiB of 8 GiB)`.
impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, used) = (self.name(), human_bytes(self.reserved_bytes()));
        f.write_str("Budget(")?;
        if !name.is_untagged() {
            write!(f, "{:?}, ", name.name())?;
        }
        write!(f, "{used} of {})", human_bytes(self.limit()))
    }
}
