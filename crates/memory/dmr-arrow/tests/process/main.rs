//! The tests of the crate that fork, or count for the whole process.

#![allow(unsafe_code, reason = "passes C structs, forks, counts the memory of the host")]

mod k3_forked_child;
mod k4_malformed;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "some is for the other tests")]
mod support;
