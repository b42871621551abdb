//! The tests of the crate whose process forks, exits, starts itself again or counts for itself.

#[path = "../context/mod.rs"]
mod context;

mod sim_d4_forked_child;
