//! The tests of the crate that need its sources, a C compiler and the libraries beside the tests.

mod header;
mod programs;
