//! Hooks that run at a normal end of the process: they write logs and free memory.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, Weak};

use crate::panics;
use crate::process::PerProcess;
use crate::sync::lock;

/// A value with work to do at the end of the process. A value in a `static` needs this, because
/// destructors of statics do not run.
pub trait AtExit: Send + Sync {
    /// Does the work. Called once, on the thread that ends the process; other threads may still
    /// run.
    ///
    /// It must return after a bounded time, whatever other threads do and whatever the calling
    /// thread has locked. Thread-locals with a destructor are already destroyed. A panic is caught.
    fn at_exit(&self);
}

/// Registers a hook, which is called when the process ends if it still lives then.
///
/// The process ends normally when `main` returns, panics or not, and when `std::process::exit` or
/// C's `exit` is called (on Windows, only when `main` returns). If it aborts, is killed or calls
/// `_exit`, no hook is called. Hooks are called in the reverse order of their registration. A
/// forked child calls the hooks that were registered in the child, and none of its parent's. If
/// this crate is part of a library, hooks are called when the library is unloaded.
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
/// far, such as those of a CUDA driver that was initialised before.
///
/// Each call adds an entry to the C library's list of handlers, for the life of the process.
pub fn run_before_earlier_handlers() {
    // Fails without host memory; then the process ends without calling the hooks.
    let _ = at_exit(run_hooks);
}

/// A forked child starts without hooks, and with a lock that no thread of its parent holds.
static HOOKS: PerProcess<Mutex<Vec<Weak<dyn AtExit>>>> = PerProcess::new(Mutex::default);

fn hooks() -> MutexGuard<'static, Vec<Weak<dyn AtExit>>> {
    lock(HOOKS.get())
}

/// The exit handler. It may be registered several times: its first call takes all hooks.
extern "C" fn run_hooks() {
    let taken = std::mem::take(&mut *hooks());
    for hook in taken.into_iter().rev().filter_map(|hook| hook.upgrade()) {
        // The closure drops the hook, and may be its last owner.
        let _ = panics::catch(move || hook.at_exit());
    }
}

/// Calls C's `atexit`.
#[cfg(any(unix, windows))]
#[allow(unsafe_code, reason = "the standard library has no exit handlers")]
fn at_exit(handler: extern "C" fn()) -> c_int {
    // SAFETY: may be called at any time, from any thread. The handler is a function of this crate
    // and does not unwind. If the crate is part of a library that is unloaded, the C library calls
    // the handler before it unmaps the code: glibc, macOS and Windows keep a list for each library,
    // and musl never unloads one.
    unsafe { libc::atexit(handler) }
}

/// Fails: this platform has no exit handlers.
#[cfg(not(any(unix, windows)))]
fn at_exit(_: extern "C" fn()) -> c_int {
    -1
}
