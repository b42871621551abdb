//! The tests of the crate that need the simulated driver.

#[path = "../counting/mod.rs"]
mod counting;

mod r8_waiting;
mod r9_other_streams;
