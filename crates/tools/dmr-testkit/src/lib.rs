//! Harness of this workspace's tests: one source for the simulated and the real driver.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`rig`] | [`Rig`]: a device, a stream pool and device operations, on the driver that the process uses |
//! | [`harness`] | [`ResourceHarness`]: the harness of the conformance suite around a resource |
//! | [`exchanging`] | [`Exchanging`]: a resource that keeps a block and returns another one |
//! | [`executor`] | [`block_on`]: an executor for one future |
//! | [`held_stream`] | [`HeldStream`]: a stream that waits until the test lets it go on |
//! | [`fake_tool`] | a tool with NVTX's memory extension, which records its calls |
//! | [`forked`] | [`exit_code`]: the end of a forked child |
//! | [`faults`] | [`for_each_driver_call`]: a scenario once per driver call that it makes |
//! | [`repository`] | paths of traces, in the sources and in a device bundle |
//! | `split_mix` | [`SplitMix64`]: random numbers of sequences that have a definition |
//!
//! For `tests/`, `examples/` and unpublished crates only: it panics where a test would.

pub mod exchanging;
pub mod executor;
pub mod fake_tool;
pub mod faults;
#[cfg(unix)]
pub mod forked;
pub mod harness;
pub mod held_stream;
pub mod repository;
pub mod rig;
pub mod scenarios;
mod split_mix;

pub use exchanging::Exchanging;
pub use executor::{CountedWakes, block_on};
pub use faults::{for_each_driver_call, for_each_driver_call_of_two};
#[cfg(unix)]
pub use forked::exit_code;
pub use harness::ResourceHarness;
pub use held_stream::HeldStream;
pub use rig::{Rig, RigConfig};
pub use split_mix::SplitMix64;
