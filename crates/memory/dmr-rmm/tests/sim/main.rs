//! The tests of the crate that need the simulated driver.
#![allow(unsafe_code, reason = "loads the library with RMM, begins captures")]

#[path = "../support/mod.rs"]
mod support;

mod d4_device_lost;
mod errors;
mod t4_failures_change_nothing;
mod t9_trimming;
mod u14_capture;
mod u9_frees_are_ordered;
