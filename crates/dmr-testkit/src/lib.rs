//! Harness of this workspace's tests: one source for the simulated and the real driver.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`rig`] | [`Rig`]: a device, a stream pool and device operations, on the driver that the process uses |
//! | [`harness`] | [`ResourceHarness`]: the harness of the conformance suite around a resource |
//! | [`fake`] | [`FakeHarness`](fake::FakeHarness): a device in host memory, no driver at all |
//! | [`fake_tool`] | a tool with NVTX's memory extension, which records its calls |
//! | [`faults`] | [`for_each_driver_call`]: a scenario once per driver call that it makes |
//! | [`repository`] | paths of traces, in the sources and in a device bundle |
//! | `split_mix` | [`SplitMix64`]: random numbers of sequences that have a definition |
//!
//! For `tests/`, `examples/` and unpublished crates only: it panics where a test would.

pub mod fake;
pub mod fake_tool;
pub mod faults;
pub mod harness;
pub mod repository;
pub mod rig;
pub mod scenarios;
mod split_mix;

pub use faults::{for_each_driver_call, for_each_driver_call_of_two};
pub use harness::ResourceHarness;
pub use rig::{Rig, RigConfig};
pub use split_mix::SplitMix64;
