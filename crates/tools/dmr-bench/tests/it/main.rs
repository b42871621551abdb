//! The tests of the crate.

mod interleave;
mod pressure;
mod workloads;
