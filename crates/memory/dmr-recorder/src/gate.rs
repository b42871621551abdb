//! The switch of the recorder, which every event reads, and its tick.

use std::sync::atomic::{AtomicU64, Ordering};

/// On lines of its own: every event reads it, and nothing may be written beside it.
#[repr(align(128))]
struct Gate(AtomicU64);

/// The number of the current tick, doubled, and one more while the recorder is on. It never
/// decreases.
static GATE: Gate = Gate(AtomicU64::new(0));

/// Returns whether the process records events.
#[inline(always)]
#[must_use]
pub fn is_on() -> bool {
    tick() & 1 != 0
}

/// Returns a number that changes with each tick, and when the recorder is switched.
#[inline(always)]
pub(crate) fn tick() -> u64 {
    GATE.0.load(Ordering::Relaxed)
}

/// Begins the next tick.
pub(crate) fn advance() {
    GATE.0.fetch_add(2, Ordering::Relaxed);
}

pub(crate) fn open() {
    advance();
    GATE.0.fetch_or(1, Ordering::Relaxed);
}

pub(crate) fn close() {
    GATE.0.fetch_and(!1, Ordering::Relaxed);
}

/// Switches the recorder off in every later forked child, whose memory a parent's rings are a copy
/// of.
#[cfg(unix)]
#[allow(unsafe_code, reason = "registers a handler for forks")]
pub(crate) fn close_in_children() {
    static WATCHING: std::sync::Once = std::sync::Once::new();
    extern "C" fn in_the_child() {
        close();
        crate::thread::forget_ring();
        // Labels have other numbers in the child.
        crate::thread::replace_label(0);
    }
    WATCHING.call_once(|| {
        // SAFETY: the handler writes atomics and thread-locals without a destructor, which is
        // allowed between fork and exec. Without host memory the call fails: then a child records
        // into its own copy of a ring, which nothing reads.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    });
}

#[cfg(not(unix))]
pub(crate) fn close_in_children() {}
