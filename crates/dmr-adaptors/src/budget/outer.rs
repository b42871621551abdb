//! [`OuterLimit`]: a limit around the root of a budget, such as one that processes share.

use std::fmt::Debug;
use std::time::Instant;

use dmr_core::AllocTag;
use dmr_core::error::SharedShortage;

/// A limit that bounds what is charged to the root of a tree of accounts.
///
/// A tree calls it after it has charged or released its root. It does not hold its lock, because a
/// method may wait for other processes, except where a reservation has a limit above its bytes. No
/// method may call the driver, a resource or the budget, and none is called in a forked child.
///
/// Releases add up to the charges. Tags need not: what a block takes of a reservation was charged
/// as `(reserved)` before.
pub(super) trait OuterLimit: Debug + Send + Sync {
    /// Returns the limit, in bytes.
    fn limit(&self) -> u64;

    /// Charges `bytes`, if they fit, and waits for other processes until the deadline, or for as long as it is
    /// configured to.
    ///
    /// # Errors
    ///
    /// Why they do not fit; nothing has changed.
    fn try_charge(
        &self,
        bytes: u64,
        tag: AllocTag,
        deadline: Option<Instant>,
    ) -> Result<(), OuterRefusal>;

    /// Charges bytes that are in use already, even if that exceeds the limit; releases them if they are
    /// negative.
    fn adjust(&self, bytes: i64, tag: AllocTag);

    /// Returns the bytes that fit now. Waits for at most a moment; 0 if they are not known then.
    fn remaining(&self) -> u64;
}

/// A refusal of a limit around the root.
#[derive(Debug)]
pub(super) struct OuterRefusal {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    pub(super) shared: SharedShortage,
}
#[cfg(all(test, not(loom)))]
mod tests {
    use std::fmt;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use dmr_core::ResourceError;

    use super::super::Budget;
    use super::super::tree::Refused;
    use super::*;

    const TAG: AllocTag = AllocTag::new("t");

    /// A limit that another process charges, too.
    struct Outer {
        limit: u64,
        charged: AtomicU64,
        /// Called once, when it is charged next.
        on_charge: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    impl Debug for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Outer")
        }
    }

    impl OuterLimit for Outer {
        fn limit(&self) -> u64 {
            self.limit
        }

        fn try_charge(
            &self,
            bytes: u64,
            _: AllocTag,
            _: Option<Instant>,
        ) -> Result<(), OuterRefusal> {
            let on_charge = self.on_charge.lock().unwrap().take();
            on_charge.into_iter().for_each(|call| call());
            let fits = |charged: u64| Some(charged + bytes).filter(|sum| *sum <= self.limit);
            let before = self.charged.fetch_update(SeqCst, SeqCst, fits);
            before.map(drop).map_err(|charged| OuterRefusal {
                limit: self.limit,
                remaining: self.limit - charged,
                shared: SharedShortage::default(),
            })
        }

        fn adjust(&self, bytes: i64, _: AllocTag) {
            let before = self.charged.fetch_add(bytes as u64, SeqCst);
            assert!(before.checked_add_signed(bytes).is_some(), "released twice");
        }

        fn remaining(&self) -> u64 {
            self.limit.saturating_sub(self.charged.load(SeqCst))
        }
    }

    fn within(limit: u64, outer: u64) -> (Budget, Arc<Outer>) {
        let (charged, on_charge) = (AtomicU64::new(0), Mutex::default());
        let outer = Arc::new(Outer { limit: outer, charged, on_charge });
        (Budget::within(limit, Arc::clone(&outer) as _), outer)
    }

    #[test]
    fn what_the_root_holds_is_charged_to_the_limit_around_it_and_released() {
        let (whole, outer) = within(1000, 800);
        let part = whole.sub_budget(TAG, 500);
        let tree = &whole.tree;
        tree.charge(&whole.account, 100, TAG, None).expect("room");
        tree.charge(&part.account, 200, TAG, None).expect("room");
        assert_eq!((outer.charged.load(SeqCst), whole.remaining()), (300, 500));
        assert_eq!(part.remaining(), 300);
        tree.adjust(&part.account, 600, TAG);
        assert_eq!((outer.charged.load(SeqCst), whole.remaining()), (900, 0));
        tree.release(&part.account, 800, TAG);
        tree.release(&whole.account, 100, TAG);
        assert_eq!((outer.charged.load(SeqCst), whole.reserved_bytes()), (0, 0));
    }

    #[test]
    fn a_refusal_of_the_limit_around_the_root_leaves_nothing_charged_and_is_the_error() {
        let (whole, outer) = within(1000, 800);
        outer.adjust(600, TAG);
        let part = whole.sub_budget(TAG, 500);
        for account in [&whole.account, &part.account] {
            let refused =
                whole.tree.charge(account, 300, TAG, None).expect_err("200 bytes are left");
            assert!(matches!(refused, Refused::Outer(_)), "{refused:?}");
            let error = whole.tree.error(refused, 300);
            let is_of_outer = |error: &ResourceError| {
                let ResourceError::OutOfBudget { limit, remaining, shared, .. } = error else {
                    return false;
                };
                (*limit, *remaining, shared.is_some()) == (800, 200, true)
            };
            assert!(is_of_outer(&error), "{error}");
        }
        assert_eq!((whole.reserved_bytes(), part.reserved_bytes()), (0, 0));
        assert_eq!(outer.charged.load(SeqCst), 600);
        // More than that limit is, whatever is charged.
        let refused = whole.tree.charge(&whole.account, 900, TAG, None).expect_err("it never fits");
        assert!(whole.tree.oversized(&whole.account, 900, refused).is_err());
        let refused = whole.tree.charge(&whole.account, 800, TAG, None).expect_err("no room");
        assert!(whole.tree.oversized(&whole.account, 800, refused).is_ok());
    }

    #[test]
    fn a_reservation_waits_for_the_limit_around_the_root() {
        let (whole, outer) = within(1000, 800);
        outer.adjust(600, TAG);
        whole.reserve(300, Duration::ZERO).expect_err("200 bytes are left");
        whole.reserve(900, Duration::from_secs(60)).expect_err("it never fits");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| whole.reserve(300, Duration::from_secs(60)));
            std::thread::sleep(Duration::from_millis(10));
            assert!(!waiting.is_finished());
            // The other process does not notify this one.
            outer.adjust(-600, TAG);
            let reserved = waiting.join().expect("a thread").expect("room");
            assert_eq!(outer.charged.load(SeqCst), 300);
            whole.tree.charge(&reserved.account, 300, TAG, None).expect("it is reserved");
            assert_eq!(outer.charged.load(SeqCst), 300);
            drop(reserved);
            assert_eq!(outer.charged.load(SeqCst), 300);
        });
    }

    #[test]
    fn a_charge_that_is_taken_back_makes_no_other_request_fail() {
        let (whole, outer) = within(300, 800);
        outer.adjust(600, TAG);
        let (other, refused) = (whole.clone(), Arc::new(Mutex::new(None)));
        let result = Arc::clone(&refused);
        // While the first request is charged to the tree, and before it is refused.
        *outer.on_charge.lock().unwrap() = Some(Box::new(move || {
            assert_eq!(other.reserved_bytes(), 250);
            let before = other.tree.releases();
            let refused = other.tree.charge(&other.sub_budget(TAG, 150).account, 150, TAG, None);
            *result.lock().unwrap() = Some((before, refused.unwrap_err()));
        }));
        let before = whole.tree.releases();
        let own = whole.tree.charge(&whole.account, 250, TAG, None).unwrap_err();
        assert!(whole.tree.stands(&own, before), "200 bytes were left: {own:?}");
        let (before, other) = refused.lock().unwrap().take().unwrap();
        assert!(!whole.tree.stands(&other, before), "nothing was left charged: {other:?}");
        assert_eq!(whole.reserved_bytes(), 0);
        whole.tree.charge(&whole.account, 150, TAG, None).unwrap();
    }
}
