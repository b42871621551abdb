//! A stand-in for cuBLAS as a shared library: `libcublas.so.12`.
//!
//! Each call launches a kernel in PTX by the driver's `cuLaunchKernel` on the stream of its handle,
//! so that the simulated driver checks its order with other work. A thread computes one element of
//! the result; sums are in `f64` for `f64`, in `i32` for products of bytes with that result, and in
//! `f32` for all others, products with a compute type of `f16` too: these are rounded once, at the
//! end. Functions that are not simulated return `CUBLAS_STATUS_NOT_SUPPORTED` and write their name
//! to the standard error once.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(unsafe_code, reason = "exported functions, and calls of the driver")]

mod driver;
mod gemm;
mod handle;
mod kernels;
mod status;
mod unsupported;
mod vectors;
