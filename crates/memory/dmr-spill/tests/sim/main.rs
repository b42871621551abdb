//! The tests of the crate that need the simulated driver.

#[path = "../context/mod.rs"]
mod context;

mod a6_order_and_failures;
