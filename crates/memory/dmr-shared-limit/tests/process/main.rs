//! The tests of the crate whose process forks, exits, starts itself again or counts for itself.

#[path = "../common/mod.rs"]
mod common;

mod executes;
mod files;
mod killed;
mod processes;
