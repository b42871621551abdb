//! The contract as a suite: checks that any resource, or stack of resources, can be put through.
//!
//! Write a [`Harness`] around your resource, and let [`conformance_tests!`] make one test of each
//! check:
//!
//! ```ignore
//! dmr_core::conformance_tests!(MyHarness::new());
//! ```
//!
//! Or run them by hand: [`run_all`] answers a [`Report`], [`run`] runs one by name, [`CHECKS`]
//! lists them. None of these panics.
//!
//! Every check names the promise of the contract that it holds the resource to. A check of use
//! tracking, on a resource that does not track, checks that the resource says so: nothing passes
//! by being skipped. [`check_forwarding`] is for adaptors: it counts what reaches the inner
//! resource.
//!
//! The suite asks little of the harness: two streams, and work on them. It finds a missing order
//! by its effect (the wrong bytes come out) where the device is slow or the harness runs work as
//! late as it may, and by [`Harness::verdict`] where there is a race detector.
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

/// What the suite needs around a resource: streams, device work, and a verdict.
///
/// A harness may run on a GPU, on the simulated driver, or over a fake in host memory. Each check
/// gets a fresh one, and one check makes two that live at the same time. A check leaks one small
/// block on purpose, and one takes all memory of the device and gives it back: on a real device,
/// run the suite alone.
pub trait Harness {
    /// The resource under test. Fresh: nothing outstanding.
    fn resource(&self) -> &dyn DeviceMemoryResource;

    /// Two different streams of the resource's pool.
    fn streams(&self) -> [StreamId; 2];

    /// A stream of another pool.
    fn foreign_stream(&self) -> StreamId;

    /// A stream of the resource's pool whose lease was returned.
    fn returned_stream(&self) -> StreamId;

    /// Bytes the device has.
    fn device_bytes(&self) -> u64;

    /// Submits work to `stream` that overwrites the whole block with `byte`.
    fn fill(&self, stream: StreamId, block: &DeviceBlock, byte: u8) -> ResourceResult<()>;

    /// Submits work to `stream` that compares the whole block with `byte`, waits for it, and
    /// answers the offset of the first byte that differs.
    fn check(
        &self,
        stream: StreamId,
        block: &DeviceBlock,
        byte: u8,
    ) -> ResourceResult<Option<usize>>;

    /// Submits work to `stream` that takes long (milliseconds on a GPU).
    fn delay(&self, stream: StreamId) -> ResourceResult<()>;

    /// Waits for all device work.
    fn settle(&self) -> ResourceResult<()>;

    /// What a race detector found so far: `Err` describes it. `Ok` where there is none.
    fn verdict(&self) -> Result<(), String>;
}
