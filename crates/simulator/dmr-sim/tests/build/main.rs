//! The tests of the crate that need the machine of the build: line tables, and files of cargo's
//! home.

#[path = "../support/mod.rs"]
mod support;

mod call_stacks;
mod driver_names;
