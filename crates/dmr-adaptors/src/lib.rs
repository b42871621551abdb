//! Layers over device memory resources: log, budget, statistics, debug guard, recovery.
//!
//! An adaptor wraps a resource and is one itself; a layer is the configuration that makes it. They
//! compose in any order, over any backend or pool ([`ResourceBuilder`]). Each is a feature, and
//! none is on by default.
//!
//! | feature | layer | adaptor | what it does |
//! | --- | --- | --- | --- |

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
