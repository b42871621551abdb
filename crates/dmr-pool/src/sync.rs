//! The primitives that the models check: std's, or loom's while it is checking.

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(loom)]
pub(crate) use loom::thread::{ThreadId, current};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::thread::{ThreadId, current};

/// Locks `mutex`, also after a panic of a thread that had it: what is locked this way is whole
/// between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns the threads of the process that wait for hands of a pool.
#[cfg(not(loom))]
pub(crate) fn waits() -> &'static crate::transit::Waits {
    static WAITS: crate::transit::Waits = crate::transit::Waits::new();
    &WAITS
}

/// Returns the threads of the model that wait for hands of a pool.
#[cfg(loom)]
pub(crate) fn waits() -> &'static crate::transit::Waits {
    loom::lazy_static! {
        static ref WAITS: crate::transit::Waits = crate::transit::Waits::default();
    }
    &WAITS
}
