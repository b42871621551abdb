//! The tests of the crate that fork, or count for the whole process.

#![allow(unsafe_code, reason = "passes C structs, forks, counts the memory of the host")]

mod f6_malformed;
mod f7_forked_child;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "some is for the other tests")]
mod support;
