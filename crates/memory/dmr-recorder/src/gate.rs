//! The switch of the recorder, which every event reads.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// On lines of its own: every event reads it, and nothing may be written beside it.
#[repr(align(128))]
struct Gate {
    is_on: AtomicBool,
    /// One in this many waits is measured on the device; 0 for none.
    one_in: AtomicU32,
}

static GATE: Gate = Gate { is_on: AtomicBool::new(false), one_in: AtomicU32::new(0) };

/// Returns whether the process records events.
#[inline(always)]
#[must_use]
pub fn is_on() -> bool {
    GATE.is_on.load(Ordering::Relaxed)
}

pub(crate) fn set(on: bool) {
    GATE.is_on.store(on, Ordering::Relaxed);
}

/// Returns N, if one in N waits is measured on the device; 0 for none.
#[inline]
pub(crate) fn one_in() -> u32 {
    GATE.one_in.load(Ordering::Relaxed)
}

pub(crate) fn set_one_in(one_in: Option<NonZeroU32>) {
    GATE.one_in.store(one_in.map_or(0, NonZeroU32::get), Ordering::Relaxed);
}

/// Switches the recorder off in every later forked child, whose memory a parent's rings are a copy
/// of.
#[cfg(unix)]
#[allow(unsafe_code, reason = "registers a handler for forks")]
pub(crate) fn close_in_children() {
    static WATCHING: std::sync::Once = std::sync::Once::new();
    extern "C" fn in_the_child() {
        set(false);
        crate::thread::forget_ring();
    }
    WATCHING.call_once(|| {
        // SAFETY: the handler writes an atomic and a thread-local without a destructor, which is
        // allowed between fork and exec. Without host memory the call fails: then a child records
        // into its own copy of a ring, which nothing reads.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    });
}

#[cfg(not(unix))]
pub(crate) fn close_in_children() {}
