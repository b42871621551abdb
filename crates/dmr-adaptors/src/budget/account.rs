//! One account of a budget: how many bytes may still be charged to it.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use dmr_core::AllocTag;

use crate::sync::{AtomicI64, AtomicU64, Mutex, Ordering};

/// The number of an account in its tree, never used twice.
pub(super) type AccountId = u64;

/// The largest number of bytes: higher limits and larger requests count as this.
pub(super) const MAX_BYTES: u64 = i64::MAX as u64;

/// An account. It *holds* of its parent what is charged to it, and at least its floor.
///
/// All of it changes under the lock of the tree, except for the room of the root: any thread changes
/// that by a single atomic instruction.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) id: AccountId,
    /// `None` for the root.
    pub(super) parent: Option<Arc<Self>>,
    pub(super) name: Mutex<AllocTag>,
    limit: AtomicU64,
    /// The bytes of a reservation.
    floor: AtomicU64,
    /// The limit less what is charged, in bytes. Negative after the limit was lowered.
    room: CachePadded<AtomicI64>,
}

impl Account {
    pub(super) fn new(
        id: AccountId,
        parent: Option<Arc<Self>>,
        name: AllocTag,
        limit: u64,
        floor: u64,
    ) -> Self {
        let (room, name) = (AtomicI64::new(signed(limit)), Mutex::new(name));
        let (limit, floor) = (AtomicU64::new(limit), AtomicU64::new(floor));
        Self { id, parent, name, limit, floor, room: CachePadded::new(room) }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn set_limit(&self, limit: u64) {
        let before = self.limit.swap(limit, Ordering::Relaxed);
        self.room.fetch_add(signed(limit) - signed(before), Ordering::AcqRel);
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor.load(Ordering::Relaxed)
    }

    pub(super) fn set_floor(&self, floor: u64) {
        self.floor.store(floor, Ordering::Relaxed);
    }

    /// Returns the bytes that may still be charged to this account.
    pub(super) fn room(&self) -> u64 {
        unsigned(self.room.load(Ordering::Acquire))
    }

    /// Returns the bytes that are charged.
    pub(super) fn charged(&self) -> u64 {
        unsigned(signed(self.limit()).saturating_sub(self.room.load(Ordering::Acquire)))
    }

    /// Returns the bytes that this account holds of its parent.
    pub(super) fn held(&self) -> u64 {
        self.charged().max(self.floor())
    }

    /// Returns the reserved bytes that no block uses.
    pub(super) fn unused(&self) -> u64 {
        self.floor().saturating_sub(self.charged())
    }

    /// Charges `bytes` to this account alone, if they fit. Zero bytes always fit.
    ///
    /// # Errors
    ///
    /// The room at the instant of the refusal, in bytes.
    #[inline]
    pub(super) fn charge(&self, bytes: u64) -> Result<(), u64> {
        let bytes = signed(bytes);
        let less = |room: i64| (bytes <= room || bytes == 0).then(|| room - bytes);
        let before = self.room.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        before.map(drop).map_err(unsigned)
    }

    /// Charges `bytes` to this account alone, even if that exceeds the limit; releases them if they
    /// are negative.
    #[inline]
    pub(super) fn adjust(&self, bytes: i64) {
        self.room.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Returns this account and all above it, from here to the root.
    pub(super) fn ancestors(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        std::iter::successors(Some(self), |account| account.parent.as_ref())
    }

    /// Returns whether this account is `above` or below it.
    pub(super) fn is_within(self: &Arc<Self>, above: &Arc<Self>) -> bool {
        self.ancestors().any(|account| Arc::ptr_eq(account, above))
    }

    /// Returns this account and all above it, each with the bytes that a charge of `bytes` needs of it:
    /// without those that the accounts below it `cover`.
    pub(super) fn needs(
        self: &Arc<Self>,
        bytes: u64,
        cover: fn(&Self) -> u64,
    ) -> impl Iterator<Item = (&Arc<Self>, u64)> {
        let mut rest = bytes;
        self.ancestors().map(move |account| {
            let needed = rest;
            rest = rest.saturating_sub(cover(account));
            (account, needed)
        })
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
