//! [`OuterLimit`]: a limit around the root of a budget, such as one that processes share.

use std::fmt::Debug;

use dmr_core::AllocTag;

use super::tree::Refusal;

/// A limit that bounds what is charged to the root of a tree of accounts.
///
/// A tree calls it after it has charged or released its root. It does not hold its lock, because a
/// method may wait for other processes, except where a reservation has a limit above its bytes. No
/// method may call the driver, a resource or the budget, and none is called in a forked child.
///
/// Releases add up to the charges. Tags need not: what a block takes of a reservation was charged
/// as `(reserved)` before.
pub(super) trait OuterLimit: Debug + Send + Sync {
    /// Charges `bytes`, if they fit.
    ///
    /// # Errors
    ///
    /// Why they do not fit; nothing has changed.
    fn try_charge(&self, bytes: u64, tag: AllocTag) -> Result<(), Refusal>;

    /// Charges `bytes` that are in use already, even if that exceeds the limit.
    fn charge_anyway(&self, bytes: u64, tag: AllocTag);

    /// Releases bytes that were charged.
    fn release(&self, bytes: u64, tag: AllocTag);

    /// Returns the bytes that fit now.
    fn remaining(&self) -> u64;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fmt;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use dmr_core::error::Holder;

    use super::super::Budget;
    use super::super::tree::Refused;
    use super::*;

    const TAG: AllocTag = AllocTag::new("t");
    const NEIGHBOUR: AllocTag = AllocTag::new("neighbour");

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
        fn try_charge(&self, bytes: u64, _: AllocTag) -> Result<(), Refusal> {
            let on_charge = self.on_charge.lock().unwrap().take();
            on_charge.into_iter().for_each(|call| call());
            let fits = |charged: u64| Some(charged + bytes).filter(|sum| *sum <= self.limit);
            let before = self.charged.fetch_update(SeqCst, SeqCst, fits);
            before.map(drop).map_err(|charged| Refusal {
                name: NEIGHBOUR,
                limit: self.limit,
                remaining: self.limit - charged,
                pending: 0,
                holders: vec![Holder { tag: NEIGHBOUR, bytes: charged, blocks: 1 }],
                shared: None,
            })
        }

        fn charge_anyway(&self, bytes: u64, _: AllocTag) {
            self.charged.fetch_add(bytes, SeqCst);
        }

        fn release(&self, bytes: u64, _: AllocTag) {
            assert!(self.charged.fetch_sub(bytes, SeqCst) >= bytes, "released twice");
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
        tree.charge(&whole.account, 100, TAG).expect("room");
        tree.charge(&part.account, 200, TAG).expect("room");
        assert_eq!((outer.charged.load(SeqCst), whole.remaining()), (300, 500));
        assert_eq!(part.remaining(), 300);
        tree.charge_anyway(&part.account, 600, TAG);
        assert_eq!((outer.charged.load(SeqCst), whole.remaining()), (900, 0));
        tree.release(&part.account, 800, TAG);
        tree.release(&whole.account, 100, TAG);
        assert_eq!((outer.charged.load(SeqCst), whole.reserved_bytes()), (0, 0));
    }

    #[test]
    fn a_refusal_of_the_limit_around_the_root_leaves_nothing_charged_and_is_the_error() {
        let (whole, outer) = within(1000, 800);
        outer.charge_anyway(600, NEIGHBOUR);
        let part = whole.sub_budget(TAG, 500);
        for account in [&whole.account, &part.account] {
            let refused = whole.tree.charge(account, 300, TAG).expect_err("200 bytes are left");
            assert!(matches!(refused, Refused::Outer(_)), "{refused:?}");
            let refusal = whole.tree.refusal(refused);
            assert_eq!((refusal.name, refusal.remaining), (NEIGHBOUR, 200));
            assert_eq!(refusal.holders[0].bytes, 600);
        }
        assert_eq!((whole.reserved_bytes(), part.reserved_bytes()), (0, 0));
        assert_eq!(outer.charged.load(SeqCst), 600);
        // More than that limit is, whatever is charged.
        let refused = whole.tree.charge(&whole.account, 900, TAG).expect_err("it never fits");
        assert!(whole.tree.oversized(&whole.account, 900, &refused).is_some());
        let refused = whole.tree.charge(&whole.account, 800, TAG).expect_err("no room");
        assert!(whole.tree.oversized(&whole.account, 800, &refused).is_none());
    }

    #[test]
    fn a_reservation_waits_for_the_limit_around_the_root() {
        let (whole, outer) = within(1000, 800);
        outer.charge_anyway(600, NEIGHBOUR);
        whole.reserve(300, Duration::ZERO).expect_err("200 bytes are left");
        whole.reserve(900, Duration::from_secs(60)).expect_err("it never fits");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| whole.reserve(300, Duration::from_secs(60)));
            std::thread::sleep(Duration::from_millis(10));
            assert!(!waiting.is_finished());
            // The other process does not notify this one.
            outer.release(600, NEIGHBOUR);
            let reserved = waiting.join().expect("a thread").expect("room");
            assert_eq!(outer.charged.load(SeqCst), 300);
            whole.tree.charge(&reserved.account, 300, TAG).expect("it is reserved");
            assert_eq!(outer.charged.load(SeqCst), 300);
            drop(reserved);
            assert_eq!(outer.charged.load(SeqCst), 300);
        });
    }

    #[test]
    fn a_charge_that_is_taken_back_makes_no_other_request_fail() {
        let (whole, outer) = within(300, 800);
        outer.charge_anyway(600, NEIGHBOUR);
        let (other, refused) = (whole.clone(), Arc::new(Mutex::new(None)));
        let result = Arc::clone(&refused);
        // While the first request is charged to the tree, and before it is refused.
        *outer.on_charge.lock().unwrap() = Some(Box::new(move || {
            assert_eq!(other.reserved_bytes(), 250);
            let before = other.tree.releases();
            let refused = other.tree.charge(&other.sub_budget(TAG, 150).account, 150, TAG);
            *result.lock().unwrap() = Some((before, refused.unwrap_err()));
        }));
        let before = whole.tree.releases();
        let own = whole.tree.charge(&whole.account, 250, TAG).unwrap_err();
        assert!(whole.tree.stands(&own, before), "200 bytes were left: {own:?}");
        let (before, other) = refused.lock().unwrap().take().unwrap();
        assert!(!whole.tree.stands(&other, before), "nothing was left charged: {other:?}");
        assert_eq!(whole.reserved_bytes(), 0);
        whole.tree.charge(&whole.account, 150, TAG).unwrap();
    }
}
