//! The tests of the crate on the driver that the process uses.

mod server;
