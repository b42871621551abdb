//! CUDA devices, stream pools and device operations for stream-ordered GPU memory.
//!
//! Only this crate of the workspace creates streams.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`library`] | finds the CUDA driver, and returns an error where there is none |
//! | [`device`] | [`Device`], one GPU and its CUDA context |
//! | [`config`] | [`StreamPoolConfig`], the configuration of a stream pool |
//! | [`pool`] | [`StreamPool`], a fixed number of streams, named by ids |
//! | [`attachments`] | [`Attachment`], what a crate above keeps for each stream pool |
//! | [`guard`] | [`StreamGuard`], a stream during a call: checked once, and not retired until the call ends |
//! | [`entered_stream`] | [`EnteredStream`], a stream of the pool during a call on the regular path |
//! | [`completed`] | [`Completed`], a future of the work of a stream |
//! | [`current`] | [`CurrentContext`], the context that a call leaves current on its thread |
//! | [`event`] | [`DriverEvent`](event::DriverEvent), an event of the driver |
//! | [`relaxed`] | [`RelaxedCapture`], for driver calls that a graph capture forbids |
//! | [`lease`] | [`StreamLease`], one stream of a pool, for one user |
//! | [`context`] | [`DeviceContext`], a resource and its streams, for launches and buffers |
//! | [`launch`] | [`LaunchTokens`], the open windows of one launch |
//! | [`memory`] | [`TrackedMemory`], memory that a launch can declare |
//! | [`ops`] | [`PatternOps`], fills and checks device memory on streams |
//! | [`owner`] | [`BlockOwner`]: the right to put blocks into the use table |
//! | [`uses`] | [`UseTable`]: which blocks are used on which streams, and what must therefore wait |
//! | [`tracked`] | [`Tracked`]: use tracking for a resource without it |
//! | [`peer`] | two stream pools: the order between their streams, and peer access between devices |
//! | [`error`] | [`DeviceError`]: the errors of opening a device |
//!
//! With the feature `cudarc`, which is on by default, the streams are also values of cudarc: all of
//! cudarc's operations on streams work on them. Without it, the interface names no type of cudarc:
//! streams and contexts have handles of the driver ([`StreamGuard::handle`],
//! [`StreamPool::adopt_raw`], [`Device::from_raw`]).

#![allow(unsafe_code, reason = "calls the CUDA driver, which is a C library")]

mod acquire;
mod adopt;
pub mod attachments;
pub mod completed;
pub mod config;
pub mod context;
pub mod current;
mod declaration;
pub mod device;
pub mod entered_stream;
pub mod error;
pub mod event;
pub mod guard;
mod holds;
mod idle;
mod kernels;
pub mod launch;
pub mod lease;
mod lease_table;
pub mod library;
mod library_streams;
pub mod memory;
mod multi_stream;
mod names;
pub mod ops;
pub mod owner;
pub mod peer;
pub mod pool;
mod progress;
mod recording;
mod refusals;
pub mod relaxed;
mod seen;
mod simulated;
mod stream_entry;
mod stream_waits;
mod sync;
mod timeline;
pub mod tracked;
pub mod uses;
mod version;
mod wait;
mod wait_timer;
mod watcher;
#[cfg(feature = "cudarc")]
mod with_cudarc;

pub use attachments::Attachment;
pub use completed::Completed;
pub use config::StreamPoolConfig;
pub use context::{DeviceContext, PinnedKind, PinnedResources};
pub use current::CurrentContext;
pub use declaration::Declaration;
pub use device::Device;
pub use entered_stream::EnteredStream;
pub use error::DeviceError;
pub use guard::{HomeStream, StreamGuard};
pub use launch::LaunchTokens;
pub use lease::StreamLease;
pub use memory::{KernelArg, MemoryOrigin, TrackedMemory, TypedMemory, TypedMemoryMut};
pub use ops::PatternOps;
pub use owner::BlockOwner;
pub use pool::StreamPool;
pub use relaxed::RelaxedCapture;
pub use tracked::Tracked;
pub use uses::{BlocksInUse, Dependencies, PendingFrees, UseTable};
pub use version::DriverVersion;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
