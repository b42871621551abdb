//! The tests of the crate whose process forks, exits, starts itself again or counts for itself.

use std::sync::Mutex;

mod d3_ordinal_out_of_range;
mod d8_ten_thousand_futures;
mod sim_many_streams;

/// Held by each test: it counts the devices, the threads or the memory of the process.
static ALONE: Mutex<()> = Mutex::new(());
