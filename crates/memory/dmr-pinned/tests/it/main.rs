//! The tests of the crate on the driver that the process uses.

mod conformance_pinned;
