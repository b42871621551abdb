//! A file descriptor that forked children close.

use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use super::Process;

/// A file descriptor that each forked child closes before any other code of the child runs.
///
/// For a file that is locked with `flock`: parent and child share the lock, and a child that keeps
/// the descriptor would keep the lock of a parent that was killed. A child that executes another
/// program does not need this: open the file with `O_CLOEXEC`.
pub struct ClosedInChild {
    made_in: Process,
    index: usize,
    fd: ManuallyDrop<OwnedFd>,
}

/// The descriptors that a child closes; -1 where there is none.
static OPEN: [AtomicI32; ClosedInChild::MAX] = [const { AtomicI32::new(NONE) }; ClosedInChild::MAX];

const NONE: RawFd = -1;

impl ClosedInChild {
    /// The maximum number of these descriptors in a process.
    pub const MAX: usize = 256;

    /// Registers a descriptor.
    ///
    /// # Errors
    ///
    /// The descriptor, if [`MAX`](Self::MAX) are registered.
    pub fn new(fd: OwnedFd) -> Result<Self, OwnedFd> {
        use std::os::fd::AsRawFd;
        // Registers the handler for forks.
        let made_in = Process::current();
        let is_free = |open: &AtomicI32| {
            open.compare_exchange(NONE, fd.as_raw_fd(), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        match OPEN.iter().position(is_free) {
            Some(index) => Ok(Self { made_in, index, fd: ManuallyDrop::new(fd) }),
            None => Err(fd),
        }
    }

    /// Returns the descriptor; `None` in a forked child, where it is closed.
    #[must_use]
    pub fn get(&self) -> Option<BorrowedFd<'_>> {
        self.made_in.is_current().then(|| self.fd.as_fd())
    }
}

impl Drop for ClosedInChild {
    fn drop(&mut self) {
        if self.made_in.is_current() {
            // Before the descriptor is closed: its number may have another file then.
            OPEN[self.index].store(NONE, Ordering::Relaxed);
            // SAFETY: dropped once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

impl fmt::Debug for ClosedInChild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClosedInChild").field(&self.get()).finish()
    }
}

/// Closes the descriptors, in a forked child.
pub(super) fn close_all() {
    for open in &OPEN {
        let fd = open.swap(NONE, Ordering::Relaxed);
        if fd != NONE {
            // SAFETY: allowed between fork and exec. The descriptor is that of a `ClosedInChild` of
            // the parent, which does not use or close it in this process.
            unsafe { libc::close(fd) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_forked_child_has_closed_the_descriptor_and_the_parent_has_not() {
        let shared = ClosedInChild::new(File::open("/dev/null").unwrap().into()).unwrap();
        let fd = shared.get().unwrap().as_raw_fd();
        // SAFETY: asks about a number; the result says whether it is a descriptor.
        let is_open = || unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
        // SAFETY: the child reads memory, asks about a descriptor, and ends.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork");
        if child == 0 {
            let is_closed = shared.get().is_none() && !is_open();
            drop(shared);
            // SAFETY: ends the child, without the parent's handlers.
            unsafe { libc::_exit(i32::from(!is_closed)) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(is_open() && shared.get().is_some());
        let index = shared.index;
        drop(shared);
        assert_ne!(OPEN[index].load(Ordering::Relaxed), fd);
    }
}
