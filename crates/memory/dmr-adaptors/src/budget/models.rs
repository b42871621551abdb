//! Two and three threads on a tree of accounts and on an entry of a slot, under every order of
//! their steps.

use std::sync::Arc;

use dmr_core::AllocTag;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::Budget;
use super::account::Account;
use super::charges::Charge;
use super::charges::Entry;
use super::tree::Tree;

const TAG: AllocTag = AllocTag::new("model");

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A root with `limit` bytes, and a part of it with as many.
fn whole_and_part(limit: u64) -> (Budget, Budget) {
    let whole = Budget::new(limit);
    let part = whole.sub_budget(TAG, limit);
    (whole, part)
}

/// Charges bytes as an allocation does.
fn charge(tree: &Tree, account: &Arc<Account>, bytes: u64) -> bool {
    match account.parent {
        None => tree.try_charge(account, bytes),
        Some(_) => tree.charge(account, bytes, TAG, None).is_ok(),
    }
}

/// Charges one byte, and releases it. Returns whether it was charged.
fn charge_and_release(tree: &Tree, account: &Arc<Account>) -> bool {
    let is_charged = charge(tree, account, 1);
    if is_charged {
        tree.release(account, 1, TAG);
    }
    is_charged
}

#[test]
fn loom_the_limit_is_never_exceeded_and_nothing_is_left_charged() {
    check(|| {
        let (whole, part) = whole_and_part(2);
        let out = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = [&whole, &whole, &part]
            .into_iter()
            .map(|budget| {
                let budget = budget.clone();
                let out = Arc::clone(&out);
                thread::spawn(move || {
                    if charge(&budget.tree, &budget.account, 1) {
                        assert!(out.fetch_add(1, Ordering::Relaxed) < 2);
                        out.fetch_sub(1, Ordering::Relaxed);
                        budget.tree.release(&budget.account, 1, TAG);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("a thread"));
        assert_eq!((whole.reserved_bytes(), part.reserved_bytes()), (0, 0));
    });
}

/// The part has room for both requests, the whole for the smaller one: the larger one is refused,
/// and must not make the smaller one fail meanwhile.
#[test]
fn loom_a_request_that_fits_at_every_instant_is_granted() {
    check(|| {
        let (whole, part) = whole_and_part(2);
        assert!(charge(&whole.tree, &whole.account, 1), "room");
        let refused = {
            let part = part.clone();
            thread::spawn(move || assert!(!charge(&part.tree, &part.account, 2)))
        };
        assert!(charge(&part.tree, &part.account, 1), "it fits at every instant");
        refused.join().expect("a thread");
        assert_eq!((whole.reserved_bytes(), part.reserved_bytes()), (2, 1));
    });
}

#[test]
fn loom_nothing_is_granted_after_the_limit_was_lowered() {
    check(|| {
        let whole = Budget::new(2);
        let is_lowered = Arc::new(AtomicU64::new(0));
        let lowers = {
            let whole = whole.clone();
            let is_lowered = Arc::clone(&is_lowered);
            thread::spawn(move || {
                whole.set_limit(0);
                is_lowered.store(1, Ordering::Release);
                whole.reserved_bytes()
            })
        };
        let frees = {
            let whole = whole.clone();
            thread::spawn(move || charge_and_release(&whole.tree, &whole.account))
        };
        let was_lowered = is_lowered.load(Ordering::Acquire) == 1;
        let granted = charge(&whole.tree, &whole.account, 1);
        assert!(!(was_lowered && granted));
        let charged_then = lowers.join().expect("a thread");
        frees.join().expect("a thread");
        // What is charged now was charged when the limit had been lowered.
        assert!(whole.reserved_bytes() <= charged_then);
    });
}

#[test]
fn loom_a_reservation_that_ends_while_a_block_is_freed_leaves_nothing_charged() {
    check(|| {
        let whole = Budget::new(3);
        let reserved = whole.reserve(2, std::time::Duration::ZERO).expect("room");
        let account = Arc::clone(&reserved.account);
        assert!(charge(&whole.tree, &account, 1), "it is reserved");
        let ends = thread::spawn(move || drop(reserved));
        let frees = {
            let whole = whole.clone();
            thread::spawn(move || whole.tree.release(&account, 1, TAG))
        };
        assert!(charge_and_release(&whole.tree, &whole.account), "one byte is always left");
        ends.join().expect("a thread");
        frees.join().expect("a thread");
        assert_eq!((whole.reserved_bytes(), whole.remaining()), (0, 3));
    });
}

/// A block is freed, and another one gets its slot.
#[test]
fn loom_an_entry_is_read_as_the_charge_of_one_block() {
    check(|| {
        let entry = Arc::new(Entry::default());
        let charge = |number| Charge { account: number, bytes: number, tag: TAG };
        entry.set(1, charge(1));
        let replaces = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || {
                entry.clear();
                entry.set(2, charge(2));
            })
        };
        if let Some((generation, read)) = entry.read() {
            assert_eq!((read.account, read.bytes), (generation, generation));
        }
        replaces.join().expect("a thread");
        assert!(entry.read().is_some_and(|(generation, read)| generation == 2 && read.bytes == 2));
    });
}
