//! The opaque id of a stream: its pool, its slot there, its lease.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

const SLOT_BITS: u32 = 12;
const LEASE_BITS: u32 = 28;
const POOL_BITS: u32 = 64 - SLOT_BITS - LEASE_BITS;

/// The id of a stream, issued by a stream pool.
///
/// Opaque and `Copy`: it holds no handle and keeps nothing alive. A pool accepts only ids that it
/// issued, and only while their lease is held; for any other id a call returns
/// [`StreamMisuse`](crate::ResourceError::StreamMisuse) and never uses a different stream.
///
/// Two ids with the same pool and [`slot`](Self::slot) name the same CUDA stream, even when
/// their leases differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u64);

impl StreamId {
    /// The first non-blocking stream of the pool that gets this id, whichever pool that is.
    ///
    /// A call resolves it on entry and never stores it. It is *not* CUDA's legacy null stream.
    pub const DEFAULT: Self = Self(0);

    /// An id that no pool issues. In messages it names a stream that was refused before it got an
    /// id. Every pool refuses it.
    pub const UNISSUED: Self = Self(u64::MAX);

    /// The maximum number of slots of a pool.
    pub const MAX_SLOTS: usize = 1 << SLOT_BITS;

    /// The largest lease number of a slot. A slot that reaches it is not leased again.
    pub const MAX_LEASE: u32 = (1 << LEASE_BITS) - 1;

    /// Makes the id of a lease of a slot. Only stream pools do this; users get ids from a pool.
    ///
    /// Returns `None` if `slot` or `lease` is out of range.
    #[must_use]
    #[inline]
    pub const fn from_parts(pool: StreamPoolId, slot: usize, lease: u32) -> Option<Self> {
        if slot >= Self::MAX_SLOTS || lease > Self::MAX_LEASE {
            return None;
        }
        let pool = (pool.0.get() as u64) << (SLOT_BITS + LEASE_BITS);
        Some(Self(pool | (slot as u64) << LEASE_BITS | lease as u64))
    }

    /// Returns the pool that issued this id; `None` for [`StreamId::DEFAULT`].
    #[must_use]
    #[inline]
    pub const fn pool(self) -> Option<StreamPoolId> {
        match NonZeroU32::new((self.0 >> (SLOT_BITS + LEASE_BITS)) as u32) {
            Some(pool) => Some(StreamPoolId(pool)),
            None => None,
        }
    }

    /// Returns the slot in its pool: the small number that messages call "stream N".
    #[must_use]
    #[inline]
    pub const fn slot(self) -> usize {
        ((self.0 >> LEASE_BITS) & ((1 << SLOT_BITS) - 1)) as usize
    }

    /// Returns the lease number of the slot.
    #[must_use]
    #[inline]
    pub const fn lease(self) -> u32 {
        (self.0 & Self::MAX_LEASE as u64) as u32
    }

    /// Returns whether this is [`StreamId::DEFAULT`].
    #[must_use]
    #[inline]
    pub const fn is_default(self) -> bool {
        self.0 == 0
    }

    /// Returns the id as one number, for logs. It has no meaning outside this process.
    #[must_use]
    #[inline]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_default() {
            f.write_str("the default stream")
        } else if *self == Self::UNISSUED {
            f.write_str("the stream")
        } else {
            write!(f, "stream {}", self.slot())
        }
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pool() {
            None => f.write_str("StreamId(default)"),
            Some(_) if *self == Self::UNISSUED => f.write_str("StreamId(unissued)"),
            Some(pool) => {
                write!(f, "StreamId(pool {}, slot {}, lease {})", pool.0, self.slot(), self.lease())
            }
        }
    }
}

/// The identity of a stream pool, unique in the process and never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamPoolId(NonZeroU32);

impl StreamPoolId {
    /// Returns a new identity, or `None` once the process has made 2²⁴ − 2 pools.
    #[must_use]
    pub fn next() -> Option<Self> {
        static ISSUED: AtomicU32 = AtomicU32::new(0);
        // All ones are reserved for `UNISSUED`.
        let last = (1 << POOL_BITS) - 2;
        ISSUED
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |issued| {
                (issued < last).then_some(issued + 1)
            })
            .ok()
            .and_then(|issued| NonZeroU32::new(issued + 1))
            .map(Self)
    }
}

impl fmt::Debug for StreamPoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamPoolId({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_the_packing_at_their_limits() {
        let pool = StreamPoolId::next().unwrap();
        for (slot, lease) in [(0, 0), (0, 1), (StreamId::MAX_SLOTS - 1, StreamId::MAX_LEASE)] {
            let id = StreamId::from_parts(pool, slot, lease).unwrap();
            assert_eq!((id.pool(), id.slot(), id.lease()), (Some(pool), slot, lease));
            assert!(!id.is_default());
        }
        assert_eq!(StreamId::from_parts(pool, StreamId::MAX_SLOTS, 0), None);
        assert_eq!(StreamId::from_parts(pool, 0, StreamId::MAX_LEASE + 1), None);
    }

    #[test]
    fn pools_never_share_an_identity() {
        assert_ne!(StreamPoolId::next(), StreamPoolId::next());
        assert_eq!(StreamId::DEFAULT.pool(), None);
    }
}
