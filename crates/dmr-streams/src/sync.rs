//! The primitives of this crate's lock-free and locked parts: std's, or loom's when it is
//! checking them.

#[cfg(loom)]
pub(crate) use loom::sync::Arc;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::Arc;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Lets time pass until the next look at something that another thread is about to change: longer,
/// the more looks there were. It sleeps in the end, or a thread that the scheduler prefers would
/// keep the other one from going on.
#[cfg(not(loom))]
pub(crate) fn pause(looks: u32) {
    match looks {
        0..=5 => (0..1 << looks).for_each(|_| std::hint::spin_loop()),
        6..=99 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}

/// loom looks again when another thread has done something.
#[cfg(loom)]
pub(crate) fn pause(_: u32) {
    loom::thread::yield_now();
}
