//! The tests of the crate.

#[path = "../support/mod.rs"]
mod support;

mod faulty_resources;
mod formats;
mod hostile_files;
mod replay_calls;
mod round_trip;
mod sorted;
mod streams;
mod strict;
