//! The tests of the crate.

mod interleave;
mod pressure;
mod pressure_work;
mod workloads;
