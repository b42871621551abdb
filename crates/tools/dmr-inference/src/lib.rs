//! A small inference server: an example of how the parts of `dmr` fit together, with tests and a
//! measurement.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`model`] | the model, on the host |
//! | [`kernels`] | the kernels, as PTX |
//! | [`schedule`] | the requests, the worker threads, and the operations that they need of a runtime |
//! | [`on_dmr`] | the server on `dmr`: this is the file to read |
//! | [`on_cudarc`] | the same server on cudarc's own slices |
//! | [`report`] | the measurements of one run |
//!
//! The README of this crate explains it on one page.

#![allow(unsafe_code, reason = "kernel launches")]

pub mod kernels;
pub mod model;
pub mod on_cudarc;
pub mod on_dmr;
pub mod report;
pub mod schedule;

pub use report::Report;
pub use schedule::{Config, Outcome};

/// The errors of this example are printed, and not matched on.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
