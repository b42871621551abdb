//! Whose block a slot of the use table holds.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// Who takes blocks back: each resource has one of its own, unique in the process.
///
/// All resources of a pool share one use table; this is how one of them knows a block of
/// another's. It stands in the block's slot, so that knowing costs no look-up of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(NonZeroU64);

impl Owner {
    /// An owner that nobody has been before.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "no two are equal")]
    pub fn new() -> Self {
        static ISSUED: AtomicU64 = AtomicU64::new(1);
        // At one per nanosecond it wraps to 0 after 580 years.
        let number = ISSUED.fetch_add(1, Ordering::Relaxed);
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_owners_are_equal() {
        assert_ne!(Owner::new(), Owner::new());
    }
}
