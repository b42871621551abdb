//! The tests of the crate that need the simulated driver.

#![allow(unsafe_code, reason = "passes C structs")]

mod f6_f7_failures;
mod f6_f7_orders;
mod f6_refused_fields;
#[path = "../support/mod.rs"]
mod support;
