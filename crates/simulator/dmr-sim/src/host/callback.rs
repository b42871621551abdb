//! The program's own code, called by the simulator: kernels and host callbacks.
//!
//! Neither may call the driver (on a real device kernels cannot, and host callbacks must not).
//! A kernel has the universe's memory while it runs, and a callback that waited for its
//! own stream would wait forever, so such a call is refused before it takes the lock.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Runs code of the program, and catches its panics.
pub(crate) fn run<T>(code: impl FnOnce() -> T) -> std::thread::Result<T> {
    let before = RUNNING.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(code));
    RUNNING.set(before);
    outcome
}

/// Returns whether this thread is inside of such code.
pub(crate) fn is_running() -> bool {
    RUNNING.get()
}
