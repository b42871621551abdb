//! The tests of the crate that need the simulated driver.

mod r10_slices;
