//! The tests of the crate that need the simulated driver.

#![allow(unsafe_code, reason = "passes C structs")]

mod k2_failures;
mod k2_refused_fields;
mod k3_orders;
#[path = "../support/mod.rs"]
mod support;
