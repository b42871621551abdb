//! The tests of the crate that need the simulated driver.

#![allow(unsafe_code, reason = "makes and reads structs of C")]

#[path = "../support/mod.rs"]
mod support;

mod f4_f5_failures;
