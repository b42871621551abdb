//! The tests of the crate on the driver that the process uses.

#[path = "../support/mod.rs"]
mod support;

mod blocks;
mod conformance;
mod pages;
mod s2_adopted_streams;
