//! A number for each thread, which also a thread that is ending can read.

#[cfg(not(loom))]
use dmr_recorder::thread_number as of_thread;

/// Returns the number of the calling thread, from 1. No other thread of the process has had it.
#[inline]
pub(crate) fn thread_number() -> u64 {
    of_thread()
}

/// The numbers of a model's threads.
#[cfg(loom)]
fn of_thread() -> u64 {
    use std::cell::Cell;

    use loom::sync::atomic::{AtomicU64, Ordering};

    loom::lazy_static! {
        static ref LAST: AtomicU64 = AtomicU64::new(0);
    }
    loom::thread_local! {
        static NUMBER: Cell<u64> = Cell::new(0);
    }
    NUMBER.with(|number| match number.get() {
        0 => {
            number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
            number.get()
        }
        number => number,
    })
}
