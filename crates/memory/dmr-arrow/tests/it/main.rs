//! The tests of the crate on the driver that the process uses.

#![allow(unsafe_code, reason = "passes C structs")]

mod f6_f7_round_trip;
mod f6_import;
mod f7_export;
mod random;
#[path = "../support/mod.rs"]
mod support;
