//! GPU memory straight from the driver: one `cuMemAlloc` and one `cuMemFree` per block.
//!
//! [`DirectCudaResource`] puts nothing between the program and the driver, so a memory checker
//! (Compute Sanitizer, the simulated driver) sees each block with its exact size. It is slow, see
//! its documentation; production code takes a pool.

#![allow(
    unsafe_code,
    reason = "calls cuMemAlloc and cuMemFree, and makes blocks of what they give"
)]

mod resource;

pub use resource::DirectCudaResource;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
