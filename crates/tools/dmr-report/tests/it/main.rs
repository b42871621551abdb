//! The tests of the crate.

mod exports;
mod files;
mod recordings;
mod simulated_findings;
mod support;
mod text;
mod viewer;
