//! A lock for a few dozen instructions: one atomic read-modify-write, where a mutex needs two.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicBool, Ordering, pause};

/// Guards what is touched for some nanoseconds at a time and by hardly anybody else: one block's
/// slot, one stream's events, a pool's memory of one stream.
///
/// Nothing that may take long is done while it is held, a driver call least of all: who finds it
/// taken does not sleep until it is free, but looks again and again, and lets others run in
/// between. That is what it costs to unlock with a plain store: nobody has to be woken.
///
/// A thread that panics while it holds the latch lets go of it. What latches guard is whole between
/// any two statements.
#[derive(Default)]
pub struct Latch<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time, which may be any.
unsafe impl<T: Send> Sync for Latch<T> {}

/// The value of a [`Latch`], which is taken as long as this lives.
pub struct Latched<'l, T> {
    latch: &'l Latch<T>,
}

// SAFETY: shared, it gives out `&T` only. (Unlocking on another thread would be sound as well.)
unsafe impl<T: Sync> Sync for Latched<'_, T> {}

impl<T> Latch<T> {
    /// One that nobody has.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// One that was [left taken](Latched::leave_taken) from the start.
    pub(crate) fn taken(value: T) -> Self {
        Self { taken: AtomicBool::new(true), value: UnsafeCell::new(value) }
    }

    /// Takes it, as soon as nobody else has it.
    #[inline]
    pub fn lock(&self) -> Latched<'_, T> {
        if !self.try_take() {
            self.take_later();
        }
        Latched { latch: self }
    }

    /// Takes it, unless somebody else has it.
    #[inline]
    pub fn try_lock(&self) -> Option<Latched<'_, T>> {
        self.try_take().then(|| Latched { latch: self })
    }

    /// As [`lock`](Self::lock), as long as somebody may let go of it: `None` once `may_come` is
    /// not true any more, which who leaves it taken says.
    #[inline(always)]
    pub(crate) fn lock_while(&self, may_come: impl Fn() -> bool) -> Option<Latched<'_, T>> {
        if may_come() && (self.try_take() || self.take_while(may_come)) {
            Some(Latched { latch: self })
        } else {
            None
        }
    }

    #[cold]
    fn take_while(&self, may_come: impl Fn() -> bool) -> bool {
        let mut looks = 0;
        while may_come() {
            if self.try_take() {
                return true;
            }
            pause(looks);
            looks += 1;
        }
        false
    }

    /// The value of a latch that was left taken.
    ///
    /// # Safety
    ///
    /// The caller is the one who was told of it by who [left it taken](Latched::leave_taken), or
    /// made it so, and the only one: what the other has written comes before this call.
    #[inline]
    pub(crate) unsafe fn resume(&self) -> Latched<'_, T> {
        Latched { latch: self }
    }

    /// Acquire: what the last holder has written is seen.
    #[inline]
    fn try_take(&self) -> bool {
        let answer = self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        answer.is_ok()
    }

    #[cold]
    fn take_later(&self) {
        let mut looks = 0;
        loop {
            pause(looks);
            looks += 1;
            // A look costs the holder less than an exchange does. (loom's threads could look at an old
            // value for ever.)
            let may_be_free = cfg!(loom) || !self.taken.load(Ordering::Relaxed);
            if may_be_free && self.try_take() {
                return;
            }
        }
    }
}

impl<T> Latched<'_, T> {
    /// Nobody comes to the value any more but by [`Latch::resume`].
    #[inline]
    pub(crate) fn leave_taken(self) {
        std::mem::forget(self);
    }
}

impl<T> Drop for Latched<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.latch.taken.store(false, Ordering::Release);
    }
}

impl<T> fmt::Debug for Latch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch").finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for Latched<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Deref for Latched<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: taken by whoever has `self`, and by nobody else.
        unsafe { &*self.latch.value.get() }
    }
}

impl<T> DerefMut for Latched<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; `self` is borrowed mutably, so there is no other reference.
        unsafe { &mut *self.latch.value.get() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_many_threads_count() {
        let latch = Latch::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *latch.lock() += 1));
            }
        });
        assert_eq!(*latch.lock(), 40_000);
    }

    #[test]
    fn who_does_not_wait_for_it_leaves_it_to_who_has_it() {
        let latch = Latch::new(0);
        let held = latch.lock();
        assert!(latch.try_lock().is_none());
        assert!(latch.try_lock().is_none(), "the first look has let go of it");
        drop(held);
        *latch.try_lock().unwrap() += 1;
        assert_eq!(*latch.lock(), 1);
    }

    #[test]
    fn a_panic_lets_go_of_it() {
        let latch = Latch::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = latch.lock();
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
        assert_eq!(*latch.lock(), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, AtomicUsize};

    /// One thread at a time is inside, and sees what the others have done there: loom refuses a
    /// cell that two threads touch without order.
    #[test]
    fn one_at_a_time_is_inside() {
        loom::model(|| {
            let latch = Arc::new(Latch::new(loom::cell::UnsafeCell::new(0)));
            let count = |latch: &Latch<loom::cell::UnsafeCell<usize>>| {
                // SAFETY: the latch is held.
                latch.lock().with_mut(|count| unsafe { *count += 1 });
            };
            let other = {
                let latch = Arc::clone(&latch);
                loom::thread::spawn(move || count(&latch))
            };
            count(&latch);
            other.join().unwrap();
            // SAFETY: the latch is held.
            let counted = latch.lock().with(|count| unsafe { *count });
            assert_eq!(counted, 2);
        });
    }

    /// As the slots of the use table: empty, a latch is left taken. Who comes for what is there no
    /// more goes away, and has not opened it for two others.
    #[test]
    fn who_comes_too_late_for_one_that_is_left_taken_does_not_open_it() {
        type Shared = (Latch<loom::cell::UnsafeCell<usize>>, AtomicUsize);
        fn count(held: Latched<'_, loom::cell::UnsafeCell<usize>>) {
            // SAFETY: the latch is held.
            held.with_mut(|count| unsafe { *count += 1 });
        }
        loom::model(|| {
            let shared = Arc::new((Latch::new(Default::default()), AtomicUsize::new(1)));
            let spawn = |act: fn(&Shared)| {
                let shared: Arc<Shared> = Arc::clone(&shared);
                loom::thread::spawn(move || act(&shared))
            };
            let late = spawn(|(latch, whose)| {
                let is_mine = || whose.load(Ordering::Acquire) == 1;
                if let Some(held) = latch.lock_while(is_mine).filter(|_| is_mine()) {
                    count(held);
                }
            });
            let (latch, whose) = &*shared;
            let held = latch.lock();
            whose.store(0, Ordering::Release);
            held.leave_taken();
            // SAFETY: left taken just above.
            count(unsafe { latch.resume() });
            let enter: fn(&Shared) = |(latch, _)| {
                if let Some(held) = latch.try_lock() {
                    count(held);
                }
            };
            let next = spawn(enter);
            enter(&shared);
            late.join().unwrap();
            next.join().unwrap();
        });
    }
}
