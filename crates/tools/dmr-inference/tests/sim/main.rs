//! The tests of the crate that need the simulated driver.

mod server;
