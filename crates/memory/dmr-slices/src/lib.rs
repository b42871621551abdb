//! Slices of cudarc as blocks of stream-ordered GPU memory, and the work of cudarc's wrappers in
//! the order of a launch.
//!
//! A slice of cudarc has two events, of its last read and of its last write, and frees itself on
//! its own stream. A block has a ledger of all uses. [`CudaSlices`] converts one into the other:
//! what cudarc has recorded is waited for when a slice is adopted, and the slice's stream waits for
//! the ledger when it is given back or freed.
//!
//! | module | what it contains |
//! | --- | --- |
//! | [`cuda_slices`] | [`CudaSlices`]: slices that are adopted as blocks, and given back |
//! | [`slice`](mod@slice) | [`slice_at`], [`empty_slice`], [`record_write`]: slices of memory that is allocated otherwise |
//! | [`other_streams`] | [`OtherStreams`], the work of a launch on streams other than its own |
//! | `adopted` | slices into the use table, and out of it |
//! | `memory` | the memory of a slice, allocated and freed as cudarc does |

#![allow(unsafe_code, reason = "calls the CUDA driver, which is a C library")]

mod adopted;
pub mod cuda_slices;
mod memory;
pub mod other_streams;
pub mod slice;

pub use cuda_slices::{AdoptSliceError, CudaSlices};
pub use other_streams::OtherStreams;
pub use slice::{empty_slice, record_write, slice_at};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
