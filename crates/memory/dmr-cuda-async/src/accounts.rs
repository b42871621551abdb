//! The accounts of each home stream: bytes allocated and freed, and use slots for its next blocks.

use std::sync::OnceLock;

use dmr_core::StreamId;
use dmr_core::{SpinLock, SpinLockGuard};
use dmr_streams::uses::FreeSlot;

/// The accounting by home stream. Sums are exact whenever no call is under way.
pub(crate) struct Accounts {
    /// By slot.
    first: Box<[StreamAccount; PART]>,
    /// The slots after those, made when a part's first stream allocates: few pools need them.
    later: [OnceLock<Box<[StreamAccount]>>; PARTS],
}

const PART: usize = 64;
const PARTS: usize = StreamId::MAX_SLOTS / PART - 1;

/// On cache lines of its own: streams of different threads do not meet here.
#[derive(Debug, Default)]
#[repr(align(128))]
struct StreamAccount(SpinLock<Balance>);

/// Requested bytes. They only grow.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    allocated: u64,
    /// Of blocks whose free was queued when they were released.
    freed_at_once: u64,
    /// Of blocks that were retired.
    retired: u64,
    /// Of retired blocks that were freed.
    freed_later: u64,
    /// Of freed blocks whose free is known to have executed.
    executed: u64,
    /// Slots that blocks of the stream have left.
    slots: Vec<FreeSlot>,
}

/// Frees of a home stream that may not have executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedFrees {
    /// The slot of the stream.
    pub(crate) slot: usize,
    /// The bytes that were freed so far.
    freed: u64,
}

/// Bytes of one or of all home streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) allocated: u64,
    pub(crate) released: u64,
    pub(crate) freed: u64,
}

impl Accounts {
    pub(crate) fn new() -> Self {
        let first = Box::new(std::array::from_fn(|_| StreamAccount::default()));
        Self { first, later: [const { OnceLock::new() }; PARTS] }
    }

    /// Counts a block that was allocated; returns a use slot for it, if there is one.
    #[inline]
    pub(crate) fn allocated(&self, home: StreamId, bytes: u64) -> Option<FreeSlot> {
        let mut balance = self.of(home);
        balance.allocated += bytes;
        balance.slots.pop()
    }

    /// Subtracts the count of a block that could not be used.
    #[cold]
    pub(crate) fn not_allocated(&self, home: StreamId, bytes: u64) {
        self.of(home).allocated -= bytes;
    }

    /// Counts a block that was released and freed, and keeps its slot for the next one.
    #[inline]
    pub(crate) fn released_and_freed(&self, home: StreamId, bytes: u64, slot: FreeSlot) {
        let mut balance = self.of(home);
        balance.freed_at_once += bytes;
        balance.slots.push(slot);
    }

    /// Counts a block that was released and is not freed yet.
    pub(crate) fn retired(&self, home: StreamId, bytes: u64) {
        self.of(home).retired += bytes;
    }

    /// Counts a retired block that was freed, and keeps its slot for the next one.
    pub(crate) fn freed_later(&self, home: StreamId, bytes: u64, slot: Option<FreeSlot>) {
        let mut balance = self.of(home);
        balance.freed_later += bytes;
        balance.slots.extend(slot);
    }

    /// Returns the home streams with freed blocks whose free is not known to have executed.
    pub(crate) fn queued_frees(&self) -> Vec<QueuedFrees> {
        let queued = |(slot, account): (usize, &StreamAccount)| {
            let balance = account.0.lock();
            let freed = balance.totals().freed;
            (freed > balance.executed).then_some(QueuedFrees { slot, freed })
        };
        self.accounts().filter_map(queued).collect()
    }

    /// Remembers that these frees have executed.
    pub(crate) fn have_executed(&self, frees: &[QueuedFrees]) {
        for &QueuedFrees { slot, freed } in frees {
            let mut balance = self.in_slot(slot);
            balance.executed = balance.executed.max(freed);
        }
    }

    /// Takes all slots that are kept.
    pub(crate) fn take_slots(&self) -> impl Iterator<Item = FreeSlot> {
        self.accounts().flat_map(|(_, account)| std::mem::take(&mut account.0.lock().slots))
    }

    pub(crate) fn on(&self, home: StreamId) -> Totals {
        self.of(home).totals()
    }

    pub(crate) fn all(&self) -> Totals {
        self.accounts().map(|(_, account)| account.0.lock().totals()).fold(
            Totals::default(),
            |sum, part| Totals {
                allocated: sum.allocated + part.allocated,
                released: sum.released + part.released,
                freed: sum.freed + part.freed,
            },
        )
    }

    /// Returns the accounts that were made, with the slots of their streams.
    fn accounts(&self) -> impl Iterator<Item = (usize, &StreamAccount)> {
        let first = std::iter::once(&self.first[..]);
        let parts = first.map(Some).chain(self.later.iter().map(|part| part.get().map(|it| &**it)));
        parts.enumerate().flat_map(|(part, accounts)| {
            let slots = PART * part..;
            slots.zip(accounts.into_iter().flatten())
        })
    }

    #[inline]
    fn of(&self, home: StreamId) -> SpinLockGuard<'_, Balance> {
        self.in_slot(home.slot())
    }

    #[inline]
    fn in_slot(&self, slot: usize) -> SpinLockGuard<'_, Balance> {
        let account = match self.first.get(slot) {
            Some(account) => account,
            None => self.in_later_slot(slot - PART),
        };
        account.0.lock()
    }

    #[cold]
    fn in_later_slot(&self, slot: usize) -> &StreamAccount {
        let part = self.later[slot / PART]
            .get_or_init(|| (0..PART).map(|_| StreamAccount::default()).collect());
        &part[slot % PART]
    }
}

impl Balance {
    fn totals(&self) -> Totals {
        let released = self.freed_at_once + self.retired;
        let freed = self.freed_at_once + self.freed_later;
        Totals { allocated: self.allocated, released, freed }
    }
}

impl Totals {
    pub(crate) fn live(self) -> u64 {
        self.allocated.saturating_sub(self.released)
    }

    pub(crate) fn retired(self) -> u64 {
        self.released.saturating_sub(self.freed)
    }
}
