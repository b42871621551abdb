//! The tests of the crate.

#[path = "../support/mod.rs"]
mod support;

mod damaged_files;
mod files;
mod fuzz;
mod round_trip;
mod sections;
