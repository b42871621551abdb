//! The tests of the crate whose process forks, exits, starts itself again or counts for itself.

use std::sync::Mutex;

#[path = "../context/mod.rs"]
mod context;
mod sim_d10_peer_copies;
mod sim_faults;
mod sim_r10_adopt;

/// Held by each test that takes the failed drops of the process.
static ALONE: Mutex<()> = Mutex::new(());
