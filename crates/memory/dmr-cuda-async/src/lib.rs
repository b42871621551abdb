//! Stream-ordered GPU memory from a pool of the CUDA driver, with use tracking.
//!
//! [`AsyncCudaResource`] makes one driver call per allocation and one per free. Uses on other
//! streams than a block's own are ordered by the use table of its stream pool.

#![allow(
    unsafe_code,
    reason = "calls the driver's stream-ordered allocator, and makes blocks of what it gives"
)]

mod accounts;
mod config;
mod diagnostics;
mod driver_pool;
mod release;
mod resource;

pub use config::{AsyncConfig, ExportHandle};
pub use diagnostics::Diagnostics;
pub use driver_pool::HighWater;
pub use resource::AsyncCudaResource;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
