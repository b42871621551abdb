//! Three threads on the shards and the books, under every order of their steps.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use dmr_core::AllocTag;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::books::ROOT;
use super::shard::Shard;
use super::tree::Tree;

type SharedShard = Arc<CachePadded<Shard>>;

/// A tree, and a shard of its root with this credit for each of three threads.
fn tree(limit: u64, credit: [u64; 3]) -> (Arc<Tree>, [SharedShard; 3]) {
    let tree = Arc::new(Tree::new(limit));
    let shards = [(); 3].map(|()| tree.shard(ROOT));
    for (shard, credit) in shards.iter().zip(credit) {
        if credit > 0 {
            tree.charge(ROOT, Some(shard), credit, false).expect("room");
            tree.release(ROOT, Some(shard), credit);
        }
    }
    (tree, shards)
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn loom_the_limit_is_never_exceeded_and_nothing_is_left_charged() {
    check(|| {
        let (tree, shards) = tree(2, [0, 1, 1]);
        let out = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = shards
            .into_iter()
            .map(|shard| {
                let (tree, out) = (Arc::clone(&tree), Arc::clone(&out));
                thread::spawn(move || {
                    if tree.charge(ROOT, Some(&shard), 1, false).is_ok() {
                        assert!(out.fetch_add(1, Ordering::Relaxed) < 2);
                        out.fetch_sub(1, Ordering::Relaxed);
                        tree.release(ROOT, Some(&shard), 1);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("a thread"));
        assert_eq!(tree.books().expect("no fork").position(ROOT), (0, 2));
    });
}

/// At most one byte of two is charged by others, but which shard has the credit for the other one
/// changes: from the second to the first.
#[test]
fn loom_a_request_that_fits_at_every_instant_is_granted() {
    check(|| {
        let (tree, [first, second, third]) = tree(2, [1, 1, 0]);
        assert!(first.take(1));
        let is_back = Arc::new(AtomicU64::new(0));
        let frees = {
            let (tree, is_back) = (Arc::clone(&tree), Arc::clone(&is_back));
            thread::spawn(move || {
                tree.release(ROOT, Some(&first), 1);
                is_back.store(1, Ordering::Release);
            })
        };
        let takes = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || {
                if is_back.load(Ordering::Acquire) == 1 {
                    tree.charge(ROOT, Some(&second), 1, false).expect("the second byte");
                }
            })
        };
        tree.charge(ROOT, Some(&third), 1, false).expect("it fits at every instant");
        frees.join().expect("a thread");
        takes.join().expect("a thread");
    });
}

#[test]
fn loom_nothing_is_granted_after_the_limit_was_lowered() {
    check(|| {
        let (tree, [first, second, _]) = tree(2, [1, 1, 0]);
        let is_lowered = Arc::new(AtomicU64::new(0));
        let lowers = {
            let (tree, is_lowered) = (Arc::clone(&tree), Arc::clone(&is_lowered));
            thread::spawn(move || {
                tree.books().expect("no fork").set_limit(ROOT, 0);
                is_lowered.store(1, Ordering::Release);
            })
        };
        let frees = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || {
                if tree.charge(ROOT, Some(&first), 1, false).is_ok() {
                    tree.release(ROOT, Some(&first), 1);
                }
            })
        };
        let was_lowered = is_lowered.load(Ordering::Acquire) == 1;
        let granted = tree.charge(ROOT, Some(&second), 1, false).is_ok();
        assert!(!(was_lowered && granted));
        lowers.join().expect("a thread");
        frees.join().expect("a thread");
    });
}

#[test]
fn loom_a_share_that_ends_while_blocks_come_back_leaves_nothing_charged() {
    check(|| {
        let (tree, [first, ..]) = tree(2, [1, 0, 0]);
        let share = tree.books().expect("no fork").add(Some(ROOT), AllocTag::UNTAGGED, 2, 0);
        tree.charge(share, None, 1, false).expect("room");
        let ends = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || tree.close(share))
        };
        let frees = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || tree.release(share, None, 1))
        };
        if tree.charge(ROOT, Some(&first), 1, false).is_ok() {
            tree.release(ROOT, Some(&first), 1);
        }
        ends.join().expect("a thread");
        frees.join().expect("a thread");
        assert_eq!(tree.books().expect("no fork").position(ROOT), (0, 2));
    });
}

/// Whether a give comes before or after its shard is closed, it is in one place.
#[test]
fn loom_what_comes_back_while_a_shard_is_closed_is_there_for_the_next_request() {
    check(|| {
        let (tree, [first, second, _]) = tree(2, [2, 0, 0]);
        assert!(first.take(1));
        let frees = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || tree.release(ROOT, Some(&first), 1))
        };
        if tree.charge(ROOT, Some(&second), 2, false).is_ok() {
            tree.release(ROOT, Some(&second), 2);
        }
        frees.join().expect("a thread");
        assert_eq!(tree.books().expect("no fork").position(ROOT), (0, 2));
        tree.charge(ROOT, Some(&second), 2, false).expect("both are free");
        assert_eq!(tree.books().expect("no fork").position(ROOT), (2, 0));
    });
}
