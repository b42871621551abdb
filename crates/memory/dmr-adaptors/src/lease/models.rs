//! Two and three threads that change one counter in different cells, under every order of their
//! steps.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use loom::thread;

use super::*;

type Counter = Arc<Cells<Room, Lease>>;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A counter of three cells with this ceiling.
fn counter(ceiling: i64) -> Counter {
    Arc::new(Cells::new(Room::new(ceiling), 3))
}

/// Lets a cell keep a lease of `amount`.
fn lease(counter: &Counter, cell: usize, amount: i64) {
    counter.change_at(cell, amount).expect("room");
    counter.change_at(cell, -amount).expect("a release");
}

/// All of the room is leased to another cell, whose threads change the counter meanwhile.
#[test]
fn loom_a_change_that_fits_with_the_lease_of_another_cell_is_made() {
    check(|| {
        let counter = counter(3);
        lease(&counter, 1, 3);
        let other = {
            let counter = Arc::clone(&counter);
            thread::spawn(move || {
                counter.change_at(1, 1).expect("it fits at every instant");
                counter.change_at(1, -1).expect("a release");
            })
        };
        counter.change_at(0, 2).expect("it fits at every instant");
        other.join().expect("a thread");
        assert_eq!(counter.change_at(0, 2), Err(1));
        assert_eq!(counter.change_at(0, 1), Ok(()));
        assert_eq!(counter.room(), 0);
    });
}

/// One cell gets room before another one uses its own. So there is some at every instant, and never
/// in the cell that is looked at, if they are looked at one after the other.
#[test]
fn loom_room_that_moves_between_cells_is_found() {
    check(|| {
        let counter = counter(2);
        lease(&counter, 2, 1);
        counter.change_at(1, 1).expect("room");
        let is_removed = Arc::new(AtomicBool::new(false));
        let removes = {
            let counter = Arc::clone(&counter);
            let is_removed = Arc::clone(&is_removed);
            thread::spawn(move || {
                counter.change_at(1, -1).expect("a release");
                is_removed.store(true, Ordering::Release);
            })
        };
        let adds = {
            let counter = Arc::clone(&counter);
            thread::spawn(move || {
                if is_removed.load(Ordering::Acquire) {
                    counter.change_at(2, 1).expect("it fits at every instant");
                }
            })
        };
        counter.change_at(0, 1).expect("it fits at every instant");
        removes.join().expect("a thread");
        adds.join().expect("a thread");
    });
}

#[test]
fn loom_the_ceiling_is_never_exceeded_and_a_lower_one_ends_all_leases() {
    check(|| {
        let counter = counter(2);
        lease(&counter, 0, 1);
        lease(&counter, 1, 1);
        let counted = Arc::new(AtomicI64::new(0));
        let is_lowered = Arc::new(AtomicBool::new(false));
        let adds = {
            let counter = Arc::clone(&counter);
            let counted = Arc::clone(&counted);
            let is_lowered = Arc::clone(&is_lowered);
            thread::spawn(move || {
                let was_lowered = is_lowered.load(Ordering::Acquire);
                if counter.change_at(1, 1).is_ok() {
                    assert!(!was_lowered);
                    assert!(counted.fetch_add(1, Ordering::Relaxed) < 2);
                    counted.fetch_sub(1, Ordering::Relaxed);
                    counter.change_at(1, -1).expect("a release");
                }
            })
        };
        if counter.change_at(0, 2).is_ok() {
            assert_eq!(counted.fetch_add(2, Ordering::Relaxed), 0);
            counted.fetch_sub(2, Ordering::Relaxed);
            counter.change_at(0, -2).expect("a release");
        }
        counter.raise_ceiling(-2);
        is_lowered.store(true, Ordering::Release);
        assert!(counter.change_at(0, 1).is_err());
        adds.join().expect("a thread");
        assert_eq!(counter.room(), 0);
    });
}
