//! Tests that need the simulated driver for themselves: for its ordinals, or for the pinned memory
//! that ended stream pools have left to the process. One runs at a time.

use std::sync::{Mutex, MutexGuard};

use dmr_core::sync::lock;

mod an_ended_universe_gets_no_reports;
mod s3_pinned_in_flight;

/// Waits until no other test of this executable runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    lock(&ALONE)
}
