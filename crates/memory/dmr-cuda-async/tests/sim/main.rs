//! The tests of the crate that need the simulated driver.

mod d4_device_lost;
mod driver_calls;
mod faults;
mod memory_short;
mod t4_failures_change_nothing;
mod t7_reaping_can_be_repeated;
mod u14_capture;
mod u9_pending_frees;
