//! Typed device buffers, pinned buffers and columns over stream-ordered GPU memory.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`adopt`] | slices of cudarc as buffers, and buffers as slices of cudarc |
//! | [`buffer`] | [`DeviceBuffer`], owned elements in device memory; [`Buffer`](buffer::Buffer), in memory of any kind |
//! | [`view`] | [`DeviceView`], [`DeviceViewMut`], a part of a buffer; [`View`](view::View), of memory of any kind |
//! | [`pinned`] | [`PinnedBuffer`], page-locked host memory, for copies that do not wait, and views of it |
//! | [`to_host`] | [`ToHost`], a copy to the host that a task awaits |
//! | [`adopted`] | [`AdoptedColumn`], memory of another owner whose uses are tracked |
//! | [`mod@column`] | [`Column`], a buffer, adopted memory, or an address |
//! | [`failures`] | blocks that could not be deallocated when their buffer was dropped |
//! | [`error`] | [`BufferError`] |
//!
//! # Streams
//!
//! Every operation names its stream and is ordered there. If the resource tracks uses, any stream
//! of the pool is accepted: the operation waits for the uses that it depends on, and is recorded,
//! so that later uses wait for it. If the resource does not track uses, only the buffer's home
//! stream is accepted; any other is [`StreamMisuse`](dmr_core::ResourceError::StreamMisuse).
//!
//! A copy between buffers of two stream pools, of one device or of two, names a stream of each:
//! [`copy_from_peer`](DeviceBuffer::copy_from_peer). No other operation takes a buffer of another
//! pool.
//!
//! # Waiting
//!
//! Operations on ordinary slices wait for the copy. All others are queued, and do not wait.
//!
//! # Element types
//!
//! Any [`Pod`]: all bytes that a kernel may write are a value of it. `u8` is a `Pod`, `bool` is
//! not. The feature `derive` derives it for structs; with
//! `#[bytemuck(crate = "dmr_buffer::bytemuck")]` the derive needs no dependency on `bytemuck`.
//!
//! # cudarc
//!
//! A buffer does not implement cudarc's `DevicePtr`. That trait returns an address, and at the end
//! of the use only records an event or synchronises: the use would not be in the ledger, and other
//! streams would not wait for it. Inside a launch, the views of `LaunchRecorder::launch_with`
//! implement it: pass them to cuBLAS, to cudarc's copies and to kernels. Kernels also take the
//! [`KernelArg`](dmr_streams::KernelArg) that a launch recorder returns.

#![allow(unsafe_code, reason = "copies between host and device memory")]

#[macro_use]
mod tracked_as;

#[cfg(feature = "cudarc")]
pub mod adopt;
pub mod adopted;
pub mod buffer;
pub mod chunks;
pub mod column;
pub mod error;
pub mod failures;
mod grow;
mod owner;
mod peer;
pub mod pinned;
pub mod to_host;
mod transfer;
pub mod view;

pub use bytemuck::{self, Pod, Zeroable};

#[cfg(feature = "cudarc")]
pub use adopt::GiveAwayError;
pub use adopted::{AdoptedColumn, AllowedAccess};
pub use buffer::DeviceBuffer;
pub use chunks::{Chunks, ChunksMut};
pub use column::{Column, ExternalColumn};
pub use error::BufferError;
pub use pinned::{PinnedBuffer, PinnedView, PinnedViewMut, WriteCombinedBuffer};
pub use to_host::{HostCopy, ToHost};
pub use view::{DeviceView, DeviceViewMut};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
