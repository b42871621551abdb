//! The workloads of the peers' benchmarks, on every stack of this workspace, and one table.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`sequence`] | the same allocations and frees that the peers' programs make |
//! | [`workload`] | W1 to W9, each a function that makes [`Line`]s |
//! | [`decode`] | a decode loop, launch by launch and as captured graphs |
//! | [`soak`] | a pool under a small budget for minutes, every byte checked |
//! | [`stacks`] | the resources, by name, with and without layers |
//! | [`machine`] | the GPU, or the simulated device where there is none |
//! | [`work`] | memory, events and work, as a program without a library has them |
//! | [`mod@line`] | one result, in the peers' fields |
//! | [`percentiles`] | what many durations come to |
//! | [`table`] | ours and the peers' side by side |
//! | [`steps`] | the operations whose host cost `cargo xtask bench` takes apart |
#![allow(unsafe_code, reason = "submits work to the CUDA driver, which is a C library")]

pub mod decode;
pub mod error;
pub mod line;
pub mod machine;
pub mod percentiles;
pub mod sequence;
pub mod soak;
pub mod stacks;
pub mod steps;
pub mod table;
pub mod work;
pub mod workload;

pub use error::BenchError;
pub use line::Line;
pub use machine::Machine;
