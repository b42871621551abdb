//! The tests of the crate on the driver that the process uses.

#![allow(unsafe_code, reason = "makes and reads structs of C")]

#[path = "../support/mod.rs"]
mod support;

mod f4_import;
mod f4_malformed;
mod f5_export;
