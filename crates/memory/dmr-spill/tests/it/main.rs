//! The tests of the crate on the driver that the process uses.

#[path = "../context/mod.rs"]
mod context;

mod a6_spill;
mod a6_threads;
