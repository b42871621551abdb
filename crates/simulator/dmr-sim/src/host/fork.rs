//! The forked child of the process that installed the simulator: it has no driver, and its calls
//! are refused.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::abi::*;

static FORKED_CHILD: AtomicBool = AtomicBool::new(false);

/// Calls of this process that were refused because it is a forked child.
static CALLS_OF_CHILD: AtomicU64 = AtomicU64::new(0);

/// Returns how many driver calls this process has made as a forked child: all of them were refused.
/// Always 0 in the process that installed the simulator.
#[must_use]
pub fn calls_of_forked_child() -> u64 {
    CALLS_OF_CHILD.load(Ordering::Relaxed)
}

/// A handler that is called in the child after each fork, where no driver works and a lock may be
/// held by a thread that the child does not have.
pub(crate) unsafe extern "C" fn forked() {
    FORKED_CHILD.store(true, Ordering::Relaxed);
}

/// Returns whether this process is a forked child of the one that installed the simulator.
pub(crate) fn is_forked_child() -> bool {
    FORKED_CHILD.load(Ordering::Relaxed)
}

/// Counts and refuses a call in a forked child: a thread of the parent may hold any lock.
pub(crate) fn refuse_in_child() -> Outcome {
    if is_forked_child() {
        CALLS_OF_CHILD.fetch_add(1, Ordering::Relaxed);
        return Err(ERROR_NOT_INITIALIZED);
    }
    Ok(())
}
