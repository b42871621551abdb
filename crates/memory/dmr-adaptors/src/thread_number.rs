//! A number for each thread, which also a thread that is ending can read.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the number of the calling thread, from 1. No other thread of the process has had it.
#[inline]
pub(crate) fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        // Without a destructor, so that the thread can read it until it has ended.
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    match NUMBER.get() {
        0 => {
            let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            NUMBER.set(number);
            number
        }
        number => number,
    }
}
