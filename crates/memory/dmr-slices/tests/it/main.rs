//! The tests of the crate on the driver that the process uses.

mod slices_conformance;
