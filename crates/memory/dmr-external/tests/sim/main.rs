//! The tests of the crate that need the simulated driver.

#![allow(unsafe_code, reason = "adopts memory of the driver")]

#[path = "../support/mod.rs"]
mod support;

mod f1_without_the_wait;
mod f2_failures;
