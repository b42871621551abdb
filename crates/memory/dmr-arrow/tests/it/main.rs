//! The tests of the crate on the driver that the process uses.

#![allow(unsafe_code, reason = "passes C structs")]

mod k1_round_trip;
mod k2_import;
mod k3_export;
mod random;
#[path = "../support/mod.rs"]
mod support;
