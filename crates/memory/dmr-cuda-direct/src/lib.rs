//! GPU memory directly from the driver: one `cuMemAlloc` and one `cuMemFree` per block.
//!
//! Each block of [`DirectCudaResource`] is an allocation of the driver, so that a memory checker
//! (Compute Sanitizer, the simulated driver) sees its exact size. It is slow, see its
//! documentation; production code uses a pool.

#![allow(unsafe_code, reason = "calls cuMemAlloc and cuMemFree, and makes blocks of their memory")]

mod resource;

pub use resource::DirectCudaResource;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
