//! The program's own code, called by the simulator: kernels and host callbacks.
//!
//! Neither may call the driver (nor can they on a real device: kernels cannot, and host callbacks
//! are forbidden to). Kernels run under the universe's lock, and a callback that waited for its
//! own stream would wait for ever, so such a call is refused before it takes the lock.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Runs code of the program; a panic of it goes no further.
pub(crate) fn run<T>(code: impl FnOnce() -> T) -> std::thread::Result<T> {
    let before = RUNNING.replace(true);
    let answer = catch_unwind(AssertUnwindSafe(code));
    RUNNING.set(before);
    answer
}

/// Whether this thread is inside of such code.
pub(crate) fn is_running() -> bool {
    RUNNING.get()
}
