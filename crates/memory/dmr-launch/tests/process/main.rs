//! The tests of the crate whose process forks, exits, starts itself again or counts for itself.

#[path = "../spy/mod.rs"]
mod spy;

mod no_host_allocation;
mod r7_tracing_events;
