//! The switch of the recorder, which every event reads.

use std::sync::atomic::{AtomicBool, Ordering};

/// On lines of its own: every event reads it, and nothing may be written beside it.
#[repr(align(128))]
struct Gate(AtomicBool);

static GATE: Gate = Gate(AtomicBool::new(false));

/// Returns whether the process records events.
#[inline(always)]
#[must_use]
pub fn is_on() -> bool {
    GATE.0.load(Ordering::Relaxed)
}

pub(crate) fn set(on: bool) {
    GATE.0.store(on, Ordering::Relaxed);
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
