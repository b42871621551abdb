//! A spinlock: one atomic read-modify-write to lock and unlock, where a mutex needs two.

#![allow(unsafe_code, reason = "a lock gives threads access to one value in turn")]

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

/// A lock for data that threads access for some nanoseconds at a time, and rarely at the same time:
/// one block's use slot, one stream's events, a pool's memory of one stream.
///
/// Never hold it during a driver call, or anything else that may take long: a thread that waits for
/// it does not sleep, but tries again and again, and yields in between. So unlocking is a plain
/// store, which wakes no thread.
///
/// A panic unlocks it, and does not poison it: the data must be consistent between any two
/// statements.
// In this order, so that the lock and the first fields of the value share a cache line.
#[derive(Default)]
#[repr(C)]
pub struct SpinLock<T> {
    is_locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time accesses the value, and it may be any thread.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// Waits before the next look at a value that another thread is about to change: longer, the more
/// looks there were, at most some 50 microseconds. It sleeps in the end, because a thread of higher
/// priority could keep the other one from running.
#[cfg(not(loom))]
pub fn pause(looks: u32) {
    match looks {
        0..=5 => (0..1 << looks).for_each(|_| std::hint::spin_loop()),
        6..=99 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}

/// Waits until another thread of the model has done something.
#[cfg(loom)]
pub fn pause(_: u32) {
    loom::thread::yield_now();
}

/// Access to the value of a [`SpinLock`], which is locked until this is dropped.
pub struct SpinLockGuard<'l, T> {
    lock: &'l SpinLock<T>,
}

// SAFETY: a shared reference gives access to `&T` only. (Unlocking on another thread is sound,
// too.)
unsafe impl<T: Sync> Sync for SpinLockGuard<'_, T> {}

impl<T> SpinLock<T> {
    /// Makes an unlocked lock.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { is_locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Locks it; waits while another thread holds the lock.
    #[inline]
    pub fn lock(&self) -> SpinLockGuard<'_, T> {
        if !self.try_acquire() {
            self.acquire_slowly();
        }
        SpinLockGuard { lock: self }
    }

    /// Locks it, unless another thread holds the lock.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinLockGuard<'_, T>> {
        self.try_acquire().then(|| SpinLockGuard { lock: self })
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        // Acquire: writes of earlier holders are visible.
        let acquire = Ordering::Acquire;
        let relaxed = Ordering::Relaxed;
        self.is_locked.compare_exchange(false, true, acquire, relaxed).is_ok()
    }

    #[cold]
    fn acquire_slowly(&self) {
        let mut attempts = 0;
        loop {
            pause(attempts);
            attempts += 1;
            // A load slows the holder less than an exchange. (In loom, a thread could load an old
            // value for ever.)
            let may_be_free = cfg!(loom) || !self.is_locked.load(Ordering::Relaxed);
            if may_be_free && self.try_acquire() {
                return;
            }
        }
    }
}

impl<T> Drop for SpinLockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.is_locked.store(false, Ordering::Release);
    }
}

impl<T> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinLock").finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for SpinLockGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Deref for SpinLockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is locked for `self` alone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for SpinLockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; `self` is borrowed mutably, so there is no other reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_count_of_many_threads_is_lost() {
        let lock = SpinLock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }

    #[test]
    fn a_lock_that_is_held_is_not_locked_again_and_stays_held() {
        let lock = SpinLock::new(0);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none(), "the first attempt has unlocked it");
        drop(held);
        *lock.try_lock().unwrap() += 1;
        assert_eq!(*lock.lock(), 1);
    }

    #[test]
    fn a_panic_unlocks_it() {
        let lock = SpinLock::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = lock.lock();
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;

    /// loom refuses a cell that two threads access without order.
    #[test]
    fn one_thread_at_a_time_accesses_the_value() {
        loom::model(|| {
            let lock = Arc::new(SpinLock::new(loom::cell::UnsafeCell::new(0)));
            let count = |lock: &SpinLock<loom::cell::UnsafeCell<usize>>| {
                // SAFETY: the lock is held.
                lock.lock().with_mut(|count| unsafe { *count += 1 });
            };
            let other = {
                let lock = Arc::clone(&lock);
                loom::thread::spawn(move || count(&lock))
            };
            count(&lock);
            other.join().unwrap();
            // SAFETY: the lock is held.
            let counted = lock.lock().with(|count| unsafe { *count });
            assert_eq!(counted, 2);
        });
    }
}
