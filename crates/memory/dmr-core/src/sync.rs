//! Locks of the standard library without poison: one place that says why a panic under a lock is
//! harmless.
//!
//! A lock is poisoned when a thread panics while it holds it. The crates of this project ignore
//! that. No code of theirs panics between two steps of a change: libraries do not unwrap, and the
//! code of a user (an upstream resource, a callback, a sink) is called either without a lock, or
//! where the data under the lock is consistent should the call panic. To refuse every later call
//! would instead turn one caught panic into memory that is never freed.
//!
//! Code that calls foreign code under a lock keeps to this: finish each change before the next
//! call.

use std::sync::{
    LockResult, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TryLockError, TryLockResult,
};

/// Locks a mutex, even if it is poisoned.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    ignore_poison(mutex.lock())
}

/// Locks a mutex, even if it is poisoned; returns `None` if another thread holds it.
#[inline]
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    unless_held(mutex.try_lock())
}

/// Locks a value for reading, even if it is poisoned; returns `None` if another thread writes it,
/// or waits to.
#[inline]
pub fn try_read<T: ?Sized>(lock: &RwLock<T>) -> Option<RwLockReadGuard<'_, T>> {
    unless_held(lock.try_read())
}

/// Locks a value for writing, even if it is poisoned; returns `None` if another thread holds it.
#[inline]
pub fn try_write<T: ?Sized>(lock: &RwLock<T>) -> Option<RwLockWriteGuard<'_, T>> {
    unless_held(lock.try_write())
}

#[inline]
fn unless_held<G>(result: TryLockResult<G>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Locks a value for reading, even if it is poisoned.
#[inline]
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    ignore_poison(lock.read())
}

/// Locks a value for writing, even if it is poisoned.
#[inline]
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    ignore_poison(lock.write())
}

/// Returns what a lock, or a wait on a condition variable, returns, even if the lock is poisoned.
/// Works for loom's primitives as well.
#[inline]
pub fn ignore_poison<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Panics while `guard` is held.
    fn panic_with<G>(guard: G) {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guard = guard;
            panic!("under the lock");
        }));
        assert!(panicked.is_err());
    }

    #[test]
    fn a_lock_is_taken_also_after_a_panic_under_it() {
        let mutex = Mutex::new(1);
        let rw_lock = RwLock::new(2);
        panic_with(mutex.lock().unwrap());
        panic_with(rw_lock.write().unwrap());
        assert!(mutex.is_poisoned() && rw_lock.is_poisoned());
        assert_eq!(*lock(&mutex), 1);
        assert_eq!(*read(&rw_lock), 2);
        assert_eq!(*write(&rw_lock), 2);
        let held = try_lock(&mutex).expect("no other thread has it");
        assert!(try_lock(&mutex).is_none(), "it is held: {held}");
    }
}
