//! Synchronization primitives: std's, or loom's under `cfg(loom)`.

#[cfg(not(loom))]
pub(crate) use dmr_core::{SpinLock, SpinLockGuard};
#[cfg(all(loom, feature = "budget"))]
pub(crate) use loom::sync::Condvar;
#[cfg(all(loom, feature = "budget"))]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(all(not(loom), feature = "budget"))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
#[cfg(all(not(loom), feature = "budget"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

/// A lock for which a thread of the model waits without trying again and again: two threads that do
/// would keep the one that holds it from running. `dmr-core` has the model of the spinlock.
#[cfg(loom)]
#[derive(Debug, Default)]
pub(crate) struct SpinLock<T>(Mutex<T>);

#[cfg(loom)]
pub(crate) type SpinLockGuard<'l, T> = MutexGuard<'l, T>;

#[cfg(loom)]
impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> SpinLockGuard<'_, T> {
        lock(&self.0)
    }
}

/// Locks a mutex, even if it is poisoned, as [`dmr_core::sync::lock`] does.
#[inline]
#[cfg(any(loom, feature = "budget"))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    dmr_core::sync::ignore_poison(mutex.lock())
}
