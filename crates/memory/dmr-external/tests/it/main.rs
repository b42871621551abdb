//! The tests of the crate on the driver that the process uses.

#![allow(unsafe_code, reason = "adopts memory of the driver")]

#[path = "../support/mod.rs"]
mod support;

mod conformance;
mod f1_order;
mod f2_release;
