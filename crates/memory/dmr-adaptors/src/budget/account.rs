//! One account of a budget: how many bytes may still be charged to it.

use std::iter;
use std::sync::Arc;

use dmr_core::AllocTag;

use crate::lease::{Cells, Lease, Room};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// The number of an account in its tree, never used twice.
pub(super) type AccountId = u64;

/// The largest number of bytes: higher limits and larger requests count as this.
pub(super) const MAX_BYTES: u64 = i64::MAX as u64;

/// An account. Bytes that are charged to it are charged to all accounts above it, up to a
/// reservation: the bytes of that were charged above it when it was made.
///
/// All of it changes under the lock of the tree, except for the room of the root: any thread
/// changes that, mostly in a cell of its own.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) id: AccountId,
    /// `None` for the root.
    pub(super) parent: Option<Arc<Self>>,
    pub(super) name: Mutex<AllocTag>,
    limit: AtomicU64,
    /// The bytes of a reservation; 0 once it has ended.
    reserved: AtomicU64,
    /// The limit less what is charged, in bytes. Negative after the limit was lowered.
    room: Cells<Room, Lease>,
    /// The most charged bytes that were recorded.
    recorded: AtomicU64,
}

/// The least bytes of a charge after which the high mark is looked at.
const RECORDED_FROM: u64 = 1 << 20;

impl Account {
    pub(super) fn new(
        id: AccountId,
        parent: Option<Arc<Self>>,
        name: AllocTag,
        limit: u64,
    ) -> Self {
        let limit = limit.min(MAX_BYTES);
        let room = Room::new(signed(limit));
        // Other accounts than the root change under the lock of the tree.
        let room =
            if parent.is_none() { Cells::for_all_threads(room) } else { Cells::single(room) };
        Self {
            id,
            parent,
            name: Mutex::new(name),
            limit: AtomicU64::new(limit),
            reserved: AtomicU64::new(0),
            room,
            recorded: AtomicU64::new(0),
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit; that of a reservation to at most its bytes.
    pub(super) fn set_limit(&self, limit: u64) {
        let reserved = self.reserved();
        let limit = limit.min(if reserved > 0 { reserved } else { MAX_BYTES });
        let before = self.limit.swap(limit, Ordering::Relaxed);
        // By the difference: the root is charged meanwhile, without the lock.
        self.room.raise_ceiling(signed(limit) - signed(before));
    }

    fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Makes this the account of a reservation of its limit, which is charged above it.
    pub(super) fn set_reserved(&self) {
        self.reserved.store(self.limit(), Ordering::Relaxed);
    }

    /// Ends a reservation: its limit becomes 0. Returns the bytes that no block uses, to be
    /// released above it.
    pub(super) fn end_reservation(&self) -> u64 {
        let unused = self.unused();
        self.reserved.store(0, Ordering::Relaxed);
        self.set_limit(0);
        unused
    }

    /// Returns the bytes that may still be charged to this account.
    pub(super) fn room(&self) -> u64 {
        unsigned(self.room.room())
    }

    /// Returns the bytes that are charged.
    pub(super) fn charged(&self) -> u64 {
        unsigned(signed(self.limit()).saturating_sub(self.room.room()))
    }

    /// Records a new high mark of this account and those above it, after a charge of `bytes`: not
    /// of small ones, nor of less than a 64th more than the last.
    #[inline]
    pub(super) fn record_peak(self: &Arc<Self>, bytes: u64) {
        if bytes >= RECORDED_FROM && dmr_recorder::is_on() {
            self.path().for_each(|account| account.record_own_peak());
        }
    }

    #[inline(never)]
    fn record_own_peak(&self) {
        let charged = self.charged();
        let last = self.recorded.load(Ordering::Relaxed);
        if charged > last.saturating_add(last / 64)
            && self.recorded.fetch_max(charged, Ordering::Relaxed) < charged
        {
            let name = *lock(&self.name);
            dmr_recorder::hooks::budget_peak(name, charged, self.limit());
        }
    }

    /// Returns the reserved bytes that no block uses.
    pub(super) fn unused(&self) -> u64 {
        self.reserved().saturating_sub(self.charged())
    }

    /// Charges `bytes` to this account alone, if they fit. Zero bytes always fit.
    ///
    /// # Errors
    ///
    /// The room at the instant of the refusal, in bytes.
    #[inline]
    pub(super) fn charge(&self, bytes: u64) -> Result<(), u64> {
        self.room.change(signed(bytes)).map_err(unsigned)
    }

    /// Charges `bytes` to this account alone, even if that exceeds the limit; releases them if they
    /// are negative.
    #[inline]
    pub(super) fn adjust(&self, bytes: i64) {
        self.room.force(bytes);
    }

    /// Returns whether this account is `above` or below it.
    pub(super) fn is_within(self: &Arc<Self>, above: &Arc<Self>) -> bool {
        iter::successors(Some(self), |account| account.parent.as_ref())
            .any(|account| Arc::ptr_eq(account, above))
    }

    /// Returns the accounts that a charge of this one changes, from here upwards.
    pub(super) fn path(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        iter::successors(Some(self), |account| {
            account.parent.as_ref().filter(|_| account.reserved() == 0)
        })
    }

    /// Returns whether a charge of this account changes the root.
    pub(super) fn reaches_root(self: &Arc<Self>) -> bool {
        self.path().all(|account| account.reserved() == 0)
    }
}

/// Returns bytes as a signed number, at most [`MAX_BYTES`].
#[inline]
pub(super) const fn signed(bytes: u64) -> i64 {
    if bytes > MAX_BYTES { i64::MAX } else { bytes as i64 }
}

#[inline]
const fn unsigned(bytes: i64) -> u64 {
    if bytes < 0 { 0 } else { bytes as u64 }
}
