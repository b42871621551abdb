//! The contract as a suite: checks that any resource, or stack of resources, can be put through.
//!
//! Write a [`Harness`] around your resource, and let [`conformance_tests!`] make one test of each
//! check:
//!
//! ```ignore
//! dmr_core::conformance_tests!(MyHarness::new());
//! ```
//!
//! Without the test harness of cargo: [`run_all`] returns a [`Report`], [`run`] runs one check by
//! name, [`CHECKS`] lists them. None of these panics.
//!
//! Every check names the promise of the contract that it tests. On a resource that does not track
//! uses, a check of use tracking tests that the resource refuses every use: no check is skipped.
//! [`check_forwarding`] is for adaptors: it counts the calls that reach the upstream resource.
//!
//! The suite needs little from the harness: two streams, and work on them. It detects a missing
//! order by its effect (wrong bytes) where the device is slow or the harness runs work as late as
//! it may, and by [`Harness::verdict`] where there is a race detector.
//!
//! [`conformance_tests!`]: crate::conformance_tests

mod accounting;
mod blocks;
mod check;
mod failures;
mod forwarding;
mod growing;
mod order;
mod pages;
mod report;
mod sizes;
mod streams;
mod support;
mod tracking;
mod trimming;
mod windows;

use crate::{DeviceBlock, DeviceMemoryResource, ResourceResult, StreamId};

pub use check::{CHECKS, Check, run, run_all};
pub use forwarding::{Spy, check_forwarding};
pub use report::{CheckResult, Report};

/// A resource under test, with streams, device work, and the verdict of a race detector.
///
/// A harness may run on a GPU, on the simulated driver, or over a fake in host memory. Each check
/// gets a new harness, and one check makes two that live at the same time. One check leaks a small
/// block on purpose, and one allocates all memory of the device and deallocates it: on a real
/// device, run the suite alone.
pub trait Harness {
    /// Returns the resource under test, which has no live or retired blocks yet.
    fn resource(&self) -> &dyn DeviceMemoryResource;

    /// Returns two different streams of the resource's pool.
    fn streams(&self) -> [StreamId; 2];

    /// Returns a stream of another pool.
    fn foreign_stream(&self) -> StreamId;

    /// Returns a stream of the resource's pool whose lease was returned.
    fn returned_stream(&self) -> StreamId;

    /// Returns the memory of the device, in bytes.
    fn device_bytes(&self) -> u64;

    /// Submits work to `stream` that overwrites the whole block with `byte`.
    fn fill(&self, stream: StreamId, block: &DeviceBlock, byte: u8) -> ResourceResult<()>;

    /// Submits work to `stream` that compares the whole block with `byte`, waits for it, and
    /// returns the offset of the first byte that differs.
    fn check(
        &self,
        stream: StreamId,
        block: &DeviceBlock,
        byte: u8,
    ) -> ResourceResult<Option<usize>>;

    /// Submits work to `stream` that takes long (milliseconds on a GPU).
    fn delay(&self, stream: StreamId) -> ResourceResult<()>;

    /// Waits for all device work.
    fn synchronize(&self) -> ResourceResult<()>;

    /// Returns `Err` with a description if a race detector has found a race, `Ok` also where there
    /// is none.
    fn verdict(&self) -> Result<(), String>;
}
