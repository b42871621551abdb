//! Has this process been forked? Known without a system call.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which of a chain of forked processes this is: equal in one process, different in its child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

static FORKS: AtomicU32 = AtomicU32::new(0);

impl Generation {
    /// That of this process. One load of a word that nobody writes.
    #[inline]
    pub(crate) fn current() -> Self {
        static WATCHING: Once = Once::new();
        if !WATCHING.is_completed() {
            WATCHING.call_once(watch);
        }
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process was forked since forks are counted: since the first device was opened.
    pub(crate) fn is_of_a_child(self) -> bool {
        self.0 != 0
    }
}

/// From now on every fork is counted, in the child.
#[cfg(unix)]
fn watch() {
    extern "C" fn in_the_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler does nothing but add to an atomic, which is allowed between fork and
    // exec. Without memory for it the call fails, and forks go unnoticed.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
}

/// There are no forks.
#[cfg(not(unix))]
fn watch() {}
