//! The tests of the crate that need the simulated driver.

#[path = "../support/mod.rs"]
mod support;

mod d2_no_call_waits;
mod d4_lost_device;
mod driver_calls;
mod faults;
mod leaks;
mod no_virtual_memory;
mod u14_capture;
mod unmap_comes_after_the_work;
