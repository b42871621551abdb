//! Blocks that were given back and that the resource still keeps: charged until it lets them go.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crossbeam_utils::CachePadded;
use dmr_core::process::LeakedInChild;
use dmr_core::{AllocTag, BlockId, DeviceMemoryResource};

use crate::sync::{AtomicU64, Mutex, Ordering, lock};

use super::books::AccountId;
use super::shard::Shard;
use super::tags::BEFORE;
use super::tree::Tree;

/// A block that was given back and is still charged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) id: BlockId,
    pub(super) bytes: u64,
    pub(super) tag: AllocTag,
}

/// Over how many lists the threads are spread.
const LISTS: usize = 16;

/// How many blocks a thread looks at for each that it adds: two, so that lists grow shorter.
const LOOKS: usize = 2;

/// A resource, and what was given back to it and is still charged.
///
/// A list's lock is held while the resource is asked about its entries and until what is free is
/// back in the budget: whoever waits for the lock then finds nothing that is half-way.
#[derive(Debug)]
pub(super) struct Source<R> {
    pub(super) resource: R,
    account: AccountId,
    lists: Arc<Lists>,
    /// Bytes that were retired when the budget was put there, of which no ids are known. Written
    /// with the lock of the first list.
    before: AtomicU64,
}

#[derive(Debug, Default)]
struct Lists(LeakedInChild<[CachePadded<List>; LISTS]>);

#[derive(Debug, Default)]
struct List {
    entries: Mutex<VecDeque<Entry>>,
    /// Bytes of the entries. Written with the lock.
    bytes: AtomicU64,
    /// How often something was released from here. Written with the lock, after the release and
    /// before `bytes`.
    releases: AtomicU64,
}

impl<R: DeviceMemoryResource> Source<R> {
    /// `before`: bytes that are retired in there already, and charged.
    pub(super) fn new(resource: R, account: AccountId, before: u64) -> Self {
        Self { resource, account, lists: Arc::default(), before: AtomicU64::new(before) }
    }

    pub(super) fn into_resource(self) -> R {
        self.resource
    }

    pub(super) fn lists(&self) -> Arc<dyn Pending> {
        Arc::clone(&self.lists) as Arc<dyn Pending>
    }

    /// Adds a block, and looks at the oldest of the same list.
    pub(super) fn push(&self, entry: Entry, tree: &Tree, shard: Option<&Shard>) {
        let number = shard.map_or(0, Shard::number);
        let Some(list) = self.lists.0.get(number % LISTS) else { return };
        if tree.is_forked() {
            return;
        }
        let mut entries = lock(&list.entries);
        for _ in 0..LOOKS.min(entries.len()) {
            let Some(oldest) = entries.pop_front() else { break };
            if self.resource.is_retired(oldest.id) {
                entries.push_back(oldest);
            } else {
                self.release(list, oldest, tree, shard);
            }
        }
        entries.push_back(entry);
        list.add(entry.bytes);
    }
}

impl<R: DeviceMemoryResource> Source<R> {
    /// Releases what was retired before, once nothing is.
    fn poll_before(&self, tree: &Tree) {
        let Some(first) = self.lists.0.first() else { return };
        let _lock = lock(&first.entries);
        let bytes = self.before.load(Ordering::Relaxed);
        if bytes > 0 && self.resource.usage().retired == 0 {
            tree.uncount_bytes(self.account, BEFORE, bytes);
            tree.release(self.account, None, bytes);
            first.has_released();
            self.before.store(0, Ordering::Release);
        }
    }

    /// The resource has let go of an entry of this list, whose lock is held.
    fn release(&self, list: &List, entry: Entry, tree: &Tree, shard: Option<&Shard>) {
        tree.uncount(self.account, shard, entry.tag, entry.bytes);
        tree.release(self.account, shard, entry.bytes);
        list.has_released();
        let left = list.bytes.load(Ordering::Relaxed).saturating_sub(entry.bytes);
        list.bytes.store(left, Ordering::Release);
    }
}

impl List {
    fn add(&self, bytes: u64) {
        let sum = self.bytes.load(Ordering::Relaxed).saturating_add(bytes);
        self.bytes.store(sum, Ordering::Release);
    }

    fn has_released(&self) {
        self.releases.store(self.releases.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

/// What a budget asks of a source, whatever its resource is.
pub(super) trait Polled: Send + Sync + std::fmt::Debug {
    /// Releases what the resource has let go.
    fn poll(&self, tree: &Tree);

    /// Makes the resource let go of what is done with.
    fn try_reap(&self);

    /// Whether anything may still be let go.
    fn has_pending(&self) -> bool;
}

impl<R: DeviceMemoryResource> Polled for Source<R> {
    fn poll(&self, tree: &Tree) {
        // Another thread may have held a list's lock when the process was forked.
        if tree.is_forked() {
            return;
        }
        for list in self.lists.0.iter() {
            lock(&list.entries).retain(|entry| {
                let is_kept = self.resource.is_retired(entry.id);
                if !is_kept {
                    self.release(list, *entry, tree, None);
                }
                is_kept
            });
        }
        self.poll_before(tree);
    }

    fn try_reap(&self) {
        // What it says now, it says to whoever reaps next.
        drop(self.resource.try_reap());
    }

    fn has_pending(&self) -> bool {
        self.lists.bytes() > 0 || self.before.load(Ordering::Acquire) > 0
    }
}

/// How much is charged for blocks that were given back.
pub(super) trait Pending: Send + Sync + std::fmt::Debug {
    /// In bytes.
    fn bytes(&self) -> u64;

    /// How often some were released.
    fn releases(&self) -> u64;
}

impl Pending for Lists {
    fn bytes(&self) -> u64 {
        self.0.iter().map(|list| list.bytes.load(Ordering::Acquire)).fold(0, u64::saturating_add)
    }

    fn releases(&self) -> u64 {
        self.0.iter().map(|list| list.releases.load(Ordering::Acquire)).fold(0, u64::wrapping_add)
    }
}

/// The sources that charge a tree.
#[derive(Debug, Default)]
pub(super) struct Sources {
    registered: Vec<Registered>,
    /// Releases of those that are here no more.
    earlier_releases: u64,
}

#[derive(Debug)]
struct Registered {
    account: AccountId,
    lists: Arc<dyn Pending>,
    source: Hold,
}

#[derive(Debug)]
enum Hold {
    /// Somebody uses it.
    Used(Weak<dyn Polled>),
    /// Nobody does; it is kept until it has let go of everything.
    Left(Arc<dyn Polled>),
}

impl Sources {
    pub(super) fn add(
        &mut self,
        account: AccountId,
        lists: Arc<dyn Pending>,
        source: Weak<dyn Polled>,
    ) {
        self.registered.push(Registered { account, lists, source: Hold::Used(source) });
    }

    /// Keeps a source that nobody uses any more.
    pub(super) fn leave(&mut self, source: &Arc<dyn Polled>) {
        for registered in &mut self.registered {
            if registered.source.is(source) {
                registered.source = Hold::Left(Arc::clone(source));
            }
        }
    }

    /// Takes a source out.
    #[must_use = "it may be the last reference: drop it without a lock"]
    pub(super) fn remove(&mut self, source: &Arc<dyn Polled>) -> Option<impl Sized + use<>> {
        let at = self.registered.iter().position(|registered| registered.source.is(source))?;
        let removed = self.registered.swap_remove(at);
        self.earlier_releases = self.earlier_releases.wrapping_add(removed.lists.releases());
        Some(removed)
    }

    /// All of them, to be asked without a lock.
    pub(super) fn all(&self) -> Vec<Arc<dyn Polled>> {
        self.registered.iter().filter_map(|registered| registered.source.get()).collect()
    }

    /// Those that nobody uses any more.
    pub(super) fn left(&self) -> Vec<Arc<dyn Polled>> {
        let left = |registered: &Registered| match &registered.source {
            Hold::Left(source) => Some(Arc::clone(source)),
            Hold::Used(_) => None,
        };
        self.registered.iter().filter_map(left).collect()
    }

    /// How often something that was given back was released.
    pub(super) fn releases(&self) -> u64 {
        let releases = self.registered.iter().map(|registered| registered.lists.releases());
        releases.fold(self.earlier_releases, u64::wrapping_add)
    }

    /// Bytes charged for what was given back, in the accounts that `is_asked` picks.
    pub(super) fn pending(&self, is_asked: impl Fn(AccountId) -> bool) -> u64 {
        let asked = self.registered.iter().filter(|registered| is_asked(registered.account));
        asked.map(|registered| registered.lists.bytes()).fold(0, u64::saturating_add)
    }
}

impl Hold {
    fn get(&self) -> Option<Arc<dyn Polled>> {
        match self {
            Self::Used(source) => source.upgrade(),
            Self::Left(source) => Some(Arc::clone(source)),
        }
    }

    fn is(&self, other: &Arc<dyn Polled>) -> bool {
        let own = match self {
            Self::Used(source) => source.as_ptr(),
            Self::Left(source) => Arc::as_ptr(source),
        };
        std::ptr::addr_eq(own, Arc::as_ptr(other))
    }
}
