//! The bytes that a pool has from upstream, and those that it is about to take.
//!
//! No lock is held while upstream is called, so two threads may grow at the same time. Each first
//! adds the bytes that it needs to one counter, within the limits, and only then calls: together
//! they never exceed a limit, and a call that fails takes its bytes off again. The cost is that a
//! thread may be refused bytes that another one has claimed and does not get; it finds that out in
//! its next search ([`transit`](crate::transit)).

use std::sync::atomic::{AtomicU64, Ordering};

use dmr_core::sync::lock;
use dmr_core::{DeviceMemoryResource, ResourceError};

use crate::PoolResource;

/// Bytes that the pool is about to take from upstream. They count against its limits from now on;
/// what is not fulfilled counts no more when this is dropped.
#[derive(Debug)]
#[must_use = "the bytes count no more when this is dropped"]
pub(crate) struct Claim<'p> {
    claimed: &'p AtomicU64,
    bytes: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claimed.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The refusals of upstream.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    count: u64,
    last: Option<ResourceError>,
}

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Claims `bytes` of upstream's memory, if `fits` returns `true` for the bytes that are
    /// reserved and claimed already and the maximum allows them.
    pub(crate) fn claim(&self, bytes: u64, fits: impl Fn(u64) -> bool) -> Option<Claim<'_>> {
        let most = self.most_from_upstream();
        self.claim_within(bytes, |claimed, sum| sum <= most && fits(claimed))
    }

    /// Claims `bytes` of upstream's memory, if the maximum allows them: also what it has refused.
    pub(crate) fn claim_again(&self, bytes: u64) -> Option<Claim<'_>> {
        let most = self.config.maximum_size.unwrap_or(u64::MAX);
        self.claim_within(bytes, |_, sum| sum <= most)
    }

    /// Claims `bytes`, if `fits` returns `true` for the bytes that are reserved and claimed
    /// already, and for the sum.
    fn claim_within(&self, bytes: u64, fits: impl Fn(u64, u64) -> bool) -> Option<Claim<'_>> {
        let add = |claimed: u64| claimed.checked_add(bytes).filter(|&sum| fits(claimed, sum));
        let claimed = &self.claimed;
        claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Claim { claimed, bytes })
    }

    /// Returns whether `bytes` more would keep the pool within `most` bytes and its maximum. A page
    /// is claimed as a whole.
    pub(crate) fn may_claim(&self, bytes: u64, most: u64) -> bool {
        let most = most.min(self.most_from_upstream());
        let bytes = bytes.max(self.pages.as_ref().map_or(0, |pages| pages.size));
        self.claimed.load(Ordering::Relaxed).saturating_add(bytes) <= most
    }

    /// Returns how many bytes the pool may have: its maximum, or fewer if upstream refused more.
    pub(crate) fn most_from_upstream(&self) -> u64 {
        let most = self.config.maximum_size.unwrap_or(u64::MAX);
        most.min(self.upstream_has.load(Ordering::Relaxed))
    }

    /// Notes that upstream has refused `bytes`: it is not asked for as much again until the pool
    /// has less, or [`ask_upstream_again`](Self::ask_upstream_again) is called.
    pub(crate) fn record_refusal(&self, bytes: u64, error: &ResourceError) {
        let refused = self.reserved.load(Ordering::Relaxed).saturating_add(bytes);
        // Other requests of this size would be refused as well, and each refusal is a driver call.
        self.upstream_has.store(refused.saturating_sub(1), Ordering::Relaxed);
        let mut refusals = lock(&self.refusals);
        refusals.count += 1;
        refusals.last = Some(error.clone());
    }

    /// Returns the number of times that upstream has refused.
    pub(crate) fn refusals(&self) -> u64 {
        lock(&self.refusals).count
    }

    /// Returns the last refusal of upstream, to whichever thread, if there was one after the first
    /// `count`.
    pub(crate) fn refusal_after(&self, count: u64) -> Option<ResourceError> {
        let refusals = lock(&self.refusals);
        refusals.last.clone().filter(|_| refusals.count > count)
    }

    /// Forgets what upstream refused: others may have returned memory to it. Returns `false` if it
    /// has refused nothing since the last call.
    pub(crate) fn ask_upstream_again(&self) -> bool {
        self.upstream_has.swap(u64::MAX, Ordering::Relaxed) != u64::MAX
    }

    /// Counts `bytes` of a claim as reserved: upstream has given them.
    pub(crate) fn fulfil(&self, claim: &mut Claim<'_>, bytes: u64) {
        claim.bytes -= bytes;
        let reserved = self.reserved.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.reserved_high.fetch_max(reserved, Ordering::Relaxed);
        // It has just shown that it has as much as this.
        self.upstream_has.fetch_max(reserved, Ordering::Relaxed);
        dmr_recorder::hooks::reserved(bytes, self.streams.default_stream());
    }

    /// Counts `bytes` that went back to upstream.
    pub(crate) fn count_released(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        self.claimed.fetch_sub(bytes, Ordering::Relaxed);
        dmr_recorder::hooks::released(bytes, self.streams.default_stream());
    }

    /// Returns the bytes that are reserved.
    pub(crate) fn reserved_now(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }
}
