//! The tests of the crate whose process forks, exits, starts itself again or counts for itself.

use std::sync::Mutex;

#[path = "../spy/mod.rs"]
mod spy;

mod no_host_allocation;
mod r4_nothing_to_do_is_nothing_done;
mod r7_dropped_without_finish;
mod r7_tracing_events;

/// Held by each test that counts unfinished launches: the counter is the process's.
static ALONE: Mutex<()> = Mutex::new(());
