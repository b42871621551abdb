//! Detects a forked child, without a system call.

#![allow(unsafe_code, reason = "registers a handler for forks")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

#[cfg(unix)]
mod closed;
mod refusal;
#[cfg(unix)]
pub use closed::ClosedInChild;

/// The process in which a value was made. Stored with the value, it detects a forked child.
///
/// A child has no GPU, and a lock of its parent may be held forever by a thread that the child does
/// not have. So each type with device memory stores a `Process`, and checks it before it takes a
/// lock or calls the driver: a call that can fail returns
/// [`ForkedProcess`](crate::ResourceError::ForkedProcess), and one that cannot returns zero,
/// `false` or nothing.
///
/// ```
/// # use dmr_core::Process;
/// let made_in = Process::current();
/// assert!(made_in.is_current());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

/// The number of forks between this process and the ancestor that called [`Process::current`]
/// first.
static FORKS: AtomicU32 = AtomicU32::new(0);

impl Process {
    /// Returns the calling process.
    #[must_use]
    pub fn current() -> Self {
        static WATCHING: Once = Once::new();
        if !WATCHING.is_completed() {
            WATCHING.call_once(watch);
        }
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether the calling process is still this one; `false` in a forked child.
    ///
    /// Costs a load of a word that only forks write.
    #[must_use]
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// A value that each forked child makes anew, for locks that must work in a child: the parent's
/// lock may be held by a thread that the child does not have.
pub struct PerProcess<T> {
    make: fn() -> T,
    latest: AtomicPtr<(Process, T)>,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// Makes a value that each process builds with `make` on the first [`get`](Self::get).
    #[must_use]
    pub const fn new(make: fn() -> T) -> Self {
        Self { make, latest: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the value of this process.
    pub fn get(&self) -> &T {
        let process = Process::current();
        let mut latest = self.latest.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or made by `Box::into_raw` below and never freed.
            match unsafe { latest.as_ref() } {
                Some((made_in, value)) if *made_in == process => return value,
                _ => {}
            }
            let made = Box::into_raw(Box::new((process, (self.make)())));
            let set = Ordering::AcqRel;
            let read = Ordering::Acquire;
            // A value of the parent is leaked.
            latest = match self.latest.compare_exchange(latest, made, set, read) {
                Ok(_) => made,
                Err(by_another_thread) => {
                    // SAFETY: made just now by `Box::into_raw`, and not published.
                    drop(unsafe { Box::from_raw(made) });
                    by_another_thread
                }
            };
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        // SAFETY: null, or made by `Box::into_raw` in `get` and never freed.
        let latest = unsafe { self.latest.get_mut().as_ref() };
        if latest.is_some_and(|(made_in, _)| made_in.is_current()) {
            // SAFETY: as above; `self` is borrowed mutably, so there is no other reference.
            drop(unsafe { Box::from_raw(*self.latest.get_mut()) });
        }
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

/// A value that is dropped in the process that made it, and leaked in a forked child: for data that
/// threads change under a lock, which a thread may have been changing at the fork.
pub struct LeakedInChild<T> {
    made_in: Process,
    value: ManuallyDrop<T>,
}

impl<T> LeakedInChild<T> {
    /// Wraps a value of this process.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { made_in: Process::current(), value: ManuallyDrop::new(value) }
    }

    /// Returns the value; `None` in a forked child.
    #[must_use]
    #[inline]
    pub fn current(&self) -> Option<&T> {
        self.made_in.is_current().then_some(&*self.value)
    }
}

impl<T: Default> Default for LeakedInChild<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Deref for LeakedInChild<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for LeakedInChild<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for LeakedInChild<T> {
    fn drop(&mut self) {
        if self.made_in.is_current() {
            // SAFETY: dropped once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for LeakedInChild<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Registers a handler that counts every later fork, in the child.
#[cfg(unix)]
fn watch() {
    extern "C" fn in_the_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
        closed::close_all();
    }
    // SAFETY: the handler changes atomics and closes files, which is allowed between fork and exec.
    // Without host memory the call fails, and forks are not detected.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
}

/// Does nothing: this platform has no forks.
#[cfg(not(unix))]
fn watch() {}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::ResourceError;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    static NAMES: PerProcess<Mutex<Vec<u32>>> = PerProcess::new(Mutex::default);
    static DROPPED: AtomicBool = AtomicBool::new(false);

    struct Says;

    impl Drop for Says {
        fn drop(&mut self) {
            DROPPED.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_forked_child_is_another_process_begins_anew_and_leaks_what_was_made_before() {
        let made_in = Process::current();
        let leaked = LeakedInChild::new(Says);
        let held = NAMES.get().lock().unwrap();
        // SAFETY: the child reads and writes memory, and ends.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork");
        if child == 0 {
            let is_refused = made_in.check(3) == Err(ResourceError::forked_process(3));
            let is_known = is_refused && !made_in.is_current() && Process::current().is_current();
            // The lock of the parent is held.
            let is_anew = NAMES.get().try_lock().is_ok_and(|names| names.is_empty());
            let is_hidden = leaked.current().is_none();
            drop(leaked);
            let is_leaked = !DROPPED.load(Ordering::Relaxed);
            drop(LeakedInChild::new(Says));
            let is_dropped = DROPPED.load(Ordering::Relaxed);
            let all = is_known && is_anew && is_hidden && is_leaked && is_dropped;
            // SAFETY: ends the child, without the parent's handlers.
            unsafe { libc::_exit(i32::from(!all)) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(made_in.is_current() && made_in.check(3).is_ok() && leaked.current().is_some());
        drop((held, leaked));
        assert!(DROPPED.load(Ordering::Relaxed));
    }
}
