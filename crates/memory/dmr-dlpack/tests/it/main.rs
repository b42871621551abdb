//! The tests of the crate on the driver that the process uses.

#![allow(unsafe_code, reason = "makes and reads structs of C")]

#[path = "../support/mod.rs"]
mod support;

mod l1_import;
mod l2_malformed;
mod l3_export;
