//! CUDA graphs: captured work whose replays are ordered with all other uses of its memory.
//!
//! A capture records the memory that its work uses, once. Each replay is then one use of all of it,
//! as a launch is: the stream waits for what other streams still do with that memory, and later
//! uses wait for the replay. A buffer may be freed right after a replay, and a replay after that is
//! refused.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`graph`] | [`Graph`]: capture, launch, update |
//! | [`capture`] | [`Capture`], what the closure of a capture gets; [`CaptureMode`]; [`Fork`] |
//! | [`memory`] | [`GraphPool`], [`GraphMemory`]: memory that is allocated in a capture |
//! | [`replay`] | [`Replay`]: a launch that uses more memory than the capture has recorded |
//! | [`error`] | [`CaptureError`] |
//!
//! ```no_run
//! use dmr_core::DeviceBlock;
//! use dmr_graphs::{CaptureMode, Graph};
//! # use cudarc::driver::result::memset_d8_async;
//! # use dmr_streams::{DeviceContext, StreamLease};
//!
//! # fn replay(
//! #     gpu: &impl DeviceContext,
//! #     stream: &StreamLease,
//! #     x: &mut DeviceBlock,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let work = |capture: &mut dmr_graphs::Capture<'_>| {
//!     capture.write(x);
//!     // SAFETY: the memory is the block's.
//!     unsafe { memset_d8_async(x.ptr(), 7, x.bytes(), capture.stream().cu_stream()) }
//! };
//! // SAFETY: the work uses the recorded block only.
//! let graph = unsafe { Graph::capture(gpu, stream, CaptureMode::default(), work)? };
//! for _ in 0..100 {
//!     graph.launch(stream)?;
//! }
//! # Ok(())
//! # }
//! ```

#![allow(unsafe_code, reason = "calls the CUDA driver, which is a C library")]

mod arena;
pub mod capture;
pub mod error;
mod executable;
pub mod graph;
pub mod memory;
mod order;
pub mod replay;
#[cfg(feature = "cudarc")]
mod with_cudarc;

pub use capture::{Capture, CaptureMode, CaptureOptions, Fork};
pub use error::CaptureError;
pub use graph::Graph;
pub use memory::{GraphMemory, GraphPool};
pub use replay::Replay;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
