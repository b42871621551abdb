//! CUDA devices, stream pools and device operations for stream-ordered GPU memory.
//!
//! The crate answers one question: *on which device and which stream does work run?* It is the
//! only place of the workspace that creates streams.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`library`] | finding the CUDA driver, without a panic where there is none |
//! | [`device`] | [`Device`], one GPU and its CUDA context |
//! | [`pool`] | [`StreamPool`], a fixed number of streams, by number |
//! | [`lease`] | [`StreamLease`], one of them, for one user |
//! | [`ops`] | [`PatternOps`], fills and checks device memory on streams |
//! | [`error`] | [`DeviceError`]: why a device cannot be opened |
//!
//! Streams are cudarc's, so everything that cudarc can do on a stream works on these.

#![allow(unsafe_code, reason = "calls the CUDA driver, which is a C library")]

pub mod device;
pub mod error;
mod kernels;
pub mod lease;
pub mod library;
pub mod ops;
pub mod pool;

pub use device::Device;
pub use error::DeviceError;
pub use lease::StreamLease;
pub use library::DriverVersion;
pub use ops::PatternOps;
pub use pool::{StreamPool, StreamPoolConfig};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
