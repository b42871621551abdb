//! Adaptors of device memory resources: log, budget, statistics, debug guard, failure callbacks,
//! alignment.
//!
//! An adaptor wraps a resource, its *upstream*, and is a resource itself. A layer is its
//! configuration: `XLayer` makes an `XResource`. They stack in any order over any backend or pool
//! ([`ResourceBuilder`]). Each is a feature, and none is on by default.
//!
//! | feature | layer | adaptor | what it does |
//! | --- | --- | --- | --- |
//! | `aligned` | `AlignedLayer` | `AlignedResource` | aligns blocks to more than 256 bytes |
//! | `budget` | `BudgetLayer` | `BudgetResource` | one hard limit, shares of it, and reservations |
//! | `callbacks` | `FailureCallbackLayer` | `FailureCallbackResource` | reaps, calls the program to free memory, and tries again |
//! | `debug-guard` | `DebugGuardLayer` | `DebugGuardResource` | finds overruns, underruns, writes after free and double frees |
//! | `logging` | `LoggingLayer` | `LoggingResource` | records every allocation, free, growth and reap: in a file, in memory, in a sink of your own |
//! | `statistics` | `StatisticsLayer` | `StatisticsResource` | current, peak and total, by tag, stream and scope |
//! | `metrics` | | | publishes statistics through the `metrics` facade |
//! | `tracing` | | | a logging sink that emits `tracing` events |
//!
//! # An adaptor of your own
//!
//! This one counts calls. The `deny` makes clippy find a method that the adaptor does not forward:
//! a method with a default, such as `use_tracking`, would otherwise hide what upstream can do.
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! use dmr_adaptors::ResourceLayer;
//! use dmr_core::{
//!     AllocTag, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceResult,
//!     StreamId, forward,
//! };
//!
//! /// Makes a `CallCountResource`.
//! #[derive(Clone, Debug, Default)]
//! struct CallCountLayer;
//!
//! impl<R: DeviceMemoryResource> ResourceLayer<R> for CallCountLayer {
//!     type Resource = CallCountResource<R>;
//!
//!     fn layer(&self, upstream: R) -> CallCountResource<R> {
//!         CallCountResource { upstream, calls: AtomicU64::new(0) }
//!     }
//! }
//!
//! /// Counts the calls of `allocate` and `deallocate`.
//! #[derive(Debug)]
//! struct CallCountResource<R> {
//!     upstream: R,
//!     calls: AtomicU64,
//! }
//!
//! #[deny(clippy::missing_trait_methods)]
//! impl<R: DeviceMemoryResource> DeviceMemoryResource for CallCountResource<R> {
//!     fn allocate(
//!         &self,
//!         bytes: usize,
//!         stream: StreamId,
//!         tag: AllocTag,
//!     ) -> ResourceResult<DeviceBlock> {
//!         self.calls.fetch_add(1, Ordering::Relaxed);
//!         self.upstream.allocate(bytes, stream, tag)
//!     }
//!     fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
//!         self.calls.fetch_add(1, Ordering::Relaxed);
//!         self.upstream.deallocate(block)
//!     }
//!
//!     forward!(
//!         upstream: give_away, try_grow, is_retired, device_ordinal, stream_pool,
//!         bytes_outstanding, usage, try_reap, reap_pending, trim_to, allow_access, use_tracking,
//!         virtual_memory,
//!     );
//! }
//!
//! // Its test: every method reaches upstream, and the stack keeps the contract
//! // (`dmr_core::conformance`).
//! use dmr_core::conformance::{check_forwarding, run_all};
//! use dmr_fake::FakeHarness; // a resource in host memory
//!
//! check_forwarding(&FakeHarness::new(true), |spy| CallCountLayer.layer(spy))?;
//! run_all(|| FakeHarness::wrapped(true, |fake, _| CallCountLayer.layer(fake))).into_result()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! In this crate, an adaptor is a file or folder of `src`, a feature, and a row in the table above;
//! [`dmr_core::forward!`] writes the methods that are only forwarded. It has tests of its own
//! (`tests/a4_*.rs`), and a place in `tests/a4_forwarding.rs`, `tests/a4_stacks_failures.rs` and
//! `tests/sim_a4_stacks.rs`.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "budget", feature = "logging", feature = "statistics"))]
mod host;
mod layer;
#[cfg(any(feature = "budget", feature = "statistics"))]
mod lease;
#[cfg(any(feature = "aligned", feature = "debug-guard"))]
mod narrowed;
#[cfg(any(feature = "budget", feature = "statistics"))]
mod sync;
#[cfg(any(feature = "budget", feature = "logging", feature = "statistics"))]
mod thread_number;

#[cfg(feature = "aligned")]
pub mod aligned;
#[cfg(feature = "budget")]
pub mod budget;
#[cfg(feature = "callbacks")]
pub mod callbacks;
#[cfg(feature = "debug-guard")]
pub mod guard;
#[cfg(feature = "logging")]
pub mod logging;
#[cfg(feature = "statistics")]
pub mod statistics;

pub use layer::{ResourceBuilder, ResourceLayer};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
