//! The tests of the crate that need the simulated driver.

mod known_failures;
mod pool;
mod programs;
mod short_programs;
