//! Models of [`LeaseTable`]: calls that wait against leases that are returned, in every order of
//! their steps. A wait has no end in a model, so a lost wake-up is a deadlock.

use loom::sync::Arc;
use loom::thread;

use super::LeaseTable;

type Free = LeaseTable<Vec<i32>>;

fn waits(free: &Arc<Free>, key: i32) -> thread::JoinHandle<()> {
    let free = Arc::clone(free);
    thread::spawn(move || take(&free, key))
}

/// Waits for a lease with this key.
fn take(free: &Free, key: i32) {
    let taken = free.take_in_turn(
        key,
        None,
        |free| free.iter().position(|known| *known == key).map(|at| free.remove(at)).ok_or(()),
        || Ok(()),
    );
    assert_eq!(taken, Ok(key));
}

#[test]
fn each_returned_lease_reaches_a_call_that_waits() {
    loom::model(|| {
        let free = Arc::new(Free::new(Vec::new()));
        let waiting = [waits(&free, 0), waits(&free, 0)];
        free.put(|free| free.push(0));
        free.put(|free| free.push(0));
        for thread in waiting {
            thread.join().unwrap();
        }
        assert!(free.lock().is_empty());
    });
}

/// The other call is served last, so its waking is of no use to the one that the lease is for.
#[test]
fn a_call_with_another_key_does_not_keep_a_lease_from_the_one_that_needs_it() {
    loom::model(|| {
        let free = Arc::new(Free::new(Vec::new()));
        let other = waits(&free, 0);
        let of_this_key = Arc::clone(&free);
        let waiting = thread::spawn(move || {
            take(&of_this_key, 1);
            of_this_key.put(|free| free.push(0));
        });
        free.put(|free| free.push(1));
        waiting.join().unwrap();
        other.join().unwrap();
    });
}

#[test]
fn a_lease_that_is_passed_on_reaches_the_next_call() {
    loom::model(|| {
        let free = Arc::new(Free::new(vec![0]));
        let other = Arc::clone(&free);
        let passes_on = thread::spawn(move || {
            take(&other, 0);
            other.put(|free| free.push(0));
        });
        take(&free, 0);
        free.put(|free| free.push(0));
        passes_on.join().unwrap();
        assert_eq!(free.lock().len(), 1);
    });
}
