//! The tests of the crate that run on any driver.
#![allow(unsafe_code, reason = "loads the library with RMM")]

#[path = "../support/mod.rs"]
mod support;

mod conformance;
