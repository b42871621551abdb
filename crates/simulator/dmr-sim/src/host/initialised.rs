//! The duty of a program that is booted on the simulator to call `cuInit` first.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::{ERROR_NOT_INITIALIZED, Outcome};

static AWAITED: AtomicBool = AtomicBool::new(false);

/// Refuses calls from now on, until the program initialises the driver.
pub(crate) fn await_initialisation() {
    AWAITED.store(true, Ordering::Relaxed);
}

/// Notes the program's `cuInit`.
pub(crate) fn initialised() {
    AWAITED.store(false, Ordering::Relaxed);
}

pub(crate) fn refuse_before() -> Outcome {
    if AWAITED.load(Ordering::Relaxed) { Err(ERROR_NOT_INITIALIZED) } else { Ok(()) }
}
