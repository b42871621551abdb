//! Typed device buffers, pinned buffers and columns over stream-ordered GPU memory.
//!
//! The crate answers one question: *how does typed data get to the device, live there, and come
//! back?*
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`buffer`] | [`DeviceBuffer`], owned elements on a device |
//! | [`view`] | [`DeviceView`], [`DeviceViewMut`], a part of a buffer |
//! | [`pinned`] | [`PinnedBuffer`], page-locked host memory, for copies that do not wait |
//! | [`mod@column`] | [`Column`], a buffer or memory of another owner |
//! | [`failures`] | what could not be given back when it was dropped |
//! | [`error`] | [`BufferError`] |
//!
//! # Which streams
//!
//! Every operation names its stream and is ordered there. If the resource tracks uses, any stream
//! of the pool will do: the operation waits for the uses that it must come after, and is recorded
//! for those that come later. If it does not, only the buffer's home stream will do, and any other
//! is [`StreamMisuse`](dmr_core::ResourceError::StreamMisuse).
//!
//! # When the host is free
//!
//! Operations on ordinary slices return when the slice is free again: they wait for the copy.
//! Everything else is queued, and returns at once.
//!
//! # Element types
//!
//! Any [`Pod`]: whatever bytes a kernel leaves are a value of it. `bool` is none, `u8` is. The
//! feature `derive` derives it for structs; `#[bytemuck(crate = "dmr_buffer::bytemuck")]` beside
//! the derive makes a dependency on `bytemuck` unnecessary.
//!
//! # cudarc
//!
//! A buffer is no `DevicePtr` of cudarc. That trait hands out an address and is told nothing when
//! the use ends but "record this event" or "synchronise", so the use would not get into the
//! ledger: other streams would not wait for it, silently. Pass buffers to kernels through the
//! [`KernelArg`](dmr_streams::KernelArg) that a launch recorder hands out.

#![allow(unsafe_code, reason = "copies between host and device memory")]

pub mod buffer;
pub mod column;
pub mod error;
pub mod failures;
mod owner;
pub mod pinned;
mod transfer;
pub mod view;

pub use bytemuck::{self, Pod, Zeroable};

pub use buffer::DeviceBuffer;
pub use column::{Column, ExternalColumn};
pub use error::BufferError;
pub use pinned::PinnedBuffer;
pub use view::{DeviceView, DeviceViewMut};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
