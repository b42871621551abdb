//! Memory of dmr in programs of NVIDIA's cuda-core, cuda-async and cuTile.
//!
//! Both sides track which work uses a buffer. dmr orders uses on different streams by events.
//! cuda-core refuses a use that conflicts with one under way on another stream
//! (`CUDA_ERROR_NOT_READY`). There are two ways to combine them:
//!
//! - **A kernel of cuda-core in a launch of dmr.** [`stream_of`] returns a stream of dmr for
//!   cuda-core's launch functions, and [`AdoptedStream`] is a stream of cuda-core for dmr's
//!   recorder. The recorder orders everything; nothing is refused.
//! - **A buffer that cuda-core holds** ([`Lent`]), for code that takes cuda-core's buffers or
//!   cuTile's tensors. All uses are on streams of cuda-core, and under its leases. A stream is
//!   ordered after earlier work when the buffer is lent, used by dmr, and reclaimed. Between two
//!   streams of cuda-core its own rule holds.

mod lent;
mod streams;

pub use lent::{LendError, Lent, ReclaimError, Refused};
pub use streams::{AdoptedStream, context_of, stream_of};
