//! A number for each thread, which also a thread that is ending can read.

use std::cell::Cell;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::{lazy_static, thread_local};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the number of the calling thread, from 1. No other thread of the process has had it.
#[inline]
pub(crate) fn thread_number() -> u64 {
    NUMBER.with(|number| match number.get() {
        0 => {
            number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
            number.get()
        }
        number => number,
    })
}

#[cfg(not(loom))]
static LAST: AtomicU64 = AtomicU64::new(0);
#[cfg(not(loom))]
thread_local! {
    // Without a destructor, so that the thread can read it until it has ended.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

#[cfg(loom)]
lazy_static! {
    static ref LAST: AtomicU64 = AtomicU64::new(0);
}
#[cfg(loom)]
thread_local! {
    static NUMBER: Cell<u64> = Cell::new(0);
}
