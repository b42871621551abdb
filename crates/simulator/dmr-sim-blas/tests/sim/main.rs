//! The tests of the crate that need the simulated driver.

#[path = "../support/mod.rs"]
mod support;

mod products;
mod programs;
mod vectors;
