//! Runs hooks at a normal end of the process: logs are written out, and memory is given back.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use crate::process::PerProcess;

/// A value with work to do if it still lives when the process ends. A value in a `static` does,
/// because destructors of statics do not run.
pub trait AtExit: Send + Sync {
    /// Called once, on the thread that ends the process, while other threads may go on.
    ///
    /// It must return after a bounded time, whatever other threads do, and whatever the calling
    /// thread has locked. Thread-locals that have a destructor are gone already. A panic is caught.
    fn at_exit(&self);
}

/// Calls `hook` when the process ends, if it still lives then.
///
/// The process ends normally when `main` returns, panics or not, and when `std::process::exit` or
/// C's `exit` is called (on Windows, only when `main` returns). It does not when it aborts, is
/// killed, or calls `_exit`: then no hook is called. Hooks are called in the reverse order of their
/// registration. A forked child calls those that were registered in the child itself, and none of
/// its parent's. Where this crate is part of a library that is unloaded, hooks are called when that
/// happens.
pub fn register(hook: Weak<dyn AtExit>) {
    let mut hooks = hooks();
    let is_first = hooks.is_empty();
    hooks.retain(|registered| registered.strong_count() > 0);
    hooks.push(hook);
    drop(hooks);
    if is_first {
        run_before_earlier_handlers();
    }
}

/// Makes the hooks run before every handler that the process has registered with C's `atexit` so
/// far: those of a CUDA driver, if it has been initialised.
///
/// Each call takes a place in the C library's list of handlers for good.
pub fn run_before_earlier_handlers() {
    // Without memory for it the call fails, and the process ends as if no hook were registered.
    let _ = at_exit(run_hooks);
}

/// A forked child starts with none, and with a lock that none of its parent's threads has.
static HOOKS: PerProcess<Mutex<Vec<Weak<dyn AtExit>>>> = PerProcess::new(Mutex::default);

fn hooks() -> MutexGuard<'static, Vec<Weak<dyn AtExit>>> {
    HOOKS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handler. It is registered more than once: its first call takes all hooks.
extern "C" fn run_hooks() {
    let taken = std::mem::take(&mut *hooks());
    for hook in taken.into_iter().rev().filter_map(|hook| hook.upgrade()) {
        // If the last owner has dropped it meanwhile, dropping the hook here runs its destructor.
        let outcome = catch_unwind(AssertUnwindSafe(move || hook.at_exit()));
        // Dropping what was thrown may panic again, and the process ends anyway.
        std::mem::forget(outcome);
    }
}

/// C's `atexit`.
#[cfg(any(unix, windows))]
#[allow(unsafe_code, reason = "the standard library has no exit handlers")]
fn at_exit(handler: extern "C" fn()) -> c_int {
    // SAFETY: may be called at any time, from any thread. The handler is a function of this crate
    // that lets no panic out. If the crate is part of a library that is unloaded, the C library
    // calls the handler before its code goes: glibc, macOS and Windows keep a list for each
    // library, and musl never unloads one.
    unsafe { libc::atexit(handler) }
}

/// Fails: this platform has no exit handlers.
#[cfg(not(any(unix, windows)))]
fn at_exit(_: extern "C" fn()) -> c_int {
    -1
}
