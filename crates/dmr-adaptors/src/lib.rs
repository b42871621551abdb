//! Layers over device memory resources: log, budget, statistics, debug guard, recovery.
//!
//! An adaptor wraps a resource and is one itself; a layer is the configuration that makes it. They
//! compose in any order, over any backend or pool ([`ResourceBuilder`]). Each is a feature, and
//! none is on by default.
//!
//! | feature | layer | adaptor | what it does |
//! | --- | --- | --- | --- |
//! | `aligned` | `AlignedLayer` | `AlignedResource` | aligns blocks to more than 256 bytes |
//! | `budget` | `BudgetLayer` | `GlobalDeviceBudget` | one hard limit, shares of it, and reservations |
//! | `callbacks` | `FailureCallbackLayer` | `FailureCallbackResource` | reaps, asks the program to make room, and tries again |
//! | `debug-guard` | `DebugGuardLayer` | `DebugGuardResource` | finds overruns, underruns, writes after free and double frees |
//! | `logging` | `LoggingLayer` | `LoggingResource` | records every allocation, free, growth and reap: to a file, to memory, to a sink of your own |
//! | `statistics` | `StatisticsLayer` | `StatisticsResource` | current, peak and total, by tag, stream and scope |
//! | `metrics` | | | statistics through the `metrics` facade |
//! | `tracing` | | | a logging sink that emits `tracing` events |
//!
//! Each adaptor forwards every method of the trait: `#[deny(clippy::missing_trait_methods)]` on
//! its `impl` makes the compiler say so.

#![forbid(unsafe_code)]

#[cfg(any(
    feature = "aligned",
    feature = "budget",
    feature = "callbacks",
    feature = "debug-guard",
    feature = "logging",
    feature = "statistics"
))]
mod forward;
mod layer;
#[cfg(feature = "budget")]
mod sync;
#[cfg(feature = "budget")]
mod table;
#[cfg(any(feature = "logging", feature = "statistics"))]
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
