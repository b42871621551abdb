//! The tests of the crate whose process forks, exits, starts itself again or counts for itself.

use std::sync::Mutex;

mod d3_ordinal_out_of_range;
mod sim_many_streams;

/// Held by each test: its devices are all that the process has.
static ALONE: Mutex<()> = Mutex::new(());
