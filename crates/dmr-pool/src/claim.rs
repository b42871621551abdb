//! The bytes that a pool has from upstream, and those that it is about to take.

use std::sync::atomic::{AtomicU64, Ordering};

use dmr_core::DeviceMemoryResource;

use crate::PoolResource;

/// Bytes that the pool is about to take from upstream. They count against its limits from now on;
/// what is not fulfilled counts no more when this is dropped.
#[derive(Debug)]
#[must_use = "the bytes are given up when this is dropped"]
pub(crate) struct Claim<'p> {
    claimed: &'p AtomicU64,
    bytes: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claimed.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Claims `bytes` of upstream's memory, if `fits` returns `true` for the bytes that are reserved
    /// and claimed already and the maximum allows them.
    pub(crate) fn claim(&self, bytes: u64, fits: impl Fn(u64) -> bool) -> Option<Claim<'_>> {
        let most = self.config.maximum_size.unwrap_or(u64::MAX);
        let add =
            |claimed: u64| claimed.checked_add(bytes).filter(|&sum| sum <= most && fits(claimed));
        let claimed = &self.claimed;
        claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Claim { claimed, bytes })
    }

    /// Returns whether `bytes` more would keep the pool within `most` bytes and its maximum.
    pub(crate) fn may_claim(&self, bytes: u64, most: u64) -> bool {
        let most = most.min(self.config.maximum_size.unwrap_or(u64::MAX));
        self.claimed.load(Ordering::Relaxed).saturating_add(bytes) <= most
    }

    /// Counts `bytes` of a claim as reserved: upstream has given them.
    pub(crate) fn fulfil(&self, claim: &mut Claim<'_>, bytes: u64) {
        claim.bytes -= bytes;
        let reserved = self.reserved.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.reserved_high.fetch_max(reserved, Ordering::Relaxed);
    }

    /// Counts `bytes` that upstream has taken back.
    pub(crate) fn count_given_back(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        self.claimed.fetch_sub(bytes, Ordering::Relaxed);
    }
}
