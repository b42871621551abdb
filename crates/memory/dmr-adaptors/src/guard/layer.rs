//! The configuration of a debug guard.

use std::sync::Arc;

use dmr_core::{DeviceMemoryResource, DeviceOps};

use super::DebugGuardResource;
use super::allocation::STEP;
use super::findings::Checks;
use crate::ResourceLayer;

/// The time at which the verdict of a check is read back from the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GuardChecks {
    /// By the `deallocate` that checks: it waits for the home stream, and returns what it finds.
    #[default]
    Immediate,
    /// Later, many at once: `deallocate` waits for nothing and finds nothing. The check runs on
    /// the device after the same work, and what it finds is returned by the next call that reads
    /// verdicts back: [`reap_pending`](DeviceMemoryResource::reap_pending) or
    /// [`check_all`](DebugGuardResource::check_all).
    Deferred,
}

/// Puts a [`DebugGuardResource`] around a resource.
///
/// ```
/// # use std::sync::Arc;
/// # use dmr_core::{DeviceMemoryResource, DeviceOps};
/// use dmr_adaptors::guard::{DebugGuardLayer, GuardChecks};
/// use dmr_adaptors::ResourceBuilder;
///
/// fn guarded<R: DeviceMemoryResource>(
///     backend: R,
///     ops: Arc<dyn DeviceOps>,
/// ) -> impl DeviceMemoryResource {
///     let guard = DebugGuardLayer::new(ops)
///         .with_red_zone(1024)
///         .with_backtraces(true)
///         .with_checks(GuardChecks::Deferred);
///     ResourceBuilder::new(backend).layer(guard).build()
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is put around a resource"]
pub struct DebugGuardLayer {
    pub(super) checks: Arc<Checks>,
    pub(super) red_zone: usize,
    pub(super) quarantine_bytes: usize,
    pub(super) quarantine_blocks: usize,
    pub(super) backtraces: bool,
    pub(super) mode: GuardChecks,
}

impl DebugGuardLayer {
    /// The largest red zone, in bytes: 1 GiB.
    pub const MAX_RED_ZONE: usize = 1 << 30;

    /// Makes a layer that fills and checks with `ops`, which must work on the streams of the
    /// resource that is guarded.
    ///
    /// Give it operations of its own: collecting takes all verdicts, so another caller that
    /// collects from the same operations takes the guard's findings away. Guards made by clones of
    /// one layer share the operations and lose no findings.
    pub fn new(ops: Arc<dyn DeviceOps>) -> Self {
        Self {
            checks: Arc::new(Checks::new(ops)),
            red_zone: STEP,
            quarantine_bytes: 64 << 20,
            quarantine_blocks: 1024,
            backtraces: false,
            mode: GuardChecks::Immediate,
        }
    }

    /// Sets the bytes of the red zone on each side of a block: rounded up to a multiple of 256, at
    /// least 256 and at most [`MAX_RED_ZONE`](Self::MAX_RED_ZONE). Default: 256.
    pub const fn with_red_zone(mut self, bytes: usize) -> Self {
        let bytes = if bytes > Self::MAX_RED_ZONE { Self::MAX_RED_ZONE } else { bytes };
        self.red_zone = if bytes == 0 { STEP } else { bytes.next_multiple_of(STEP) };
        self
    }

    /// Sets the bounds of the quarantine: at most `bytes` bytes of device memory, red zones
    /// included, in at most `blocks` blocks. Default: 64 MiB in 1024 blocks. 0 disables it.
    pub const fn with_quarantine(mut self, bytes: usize, blocks: usize) -> Self {
        self.quarantine_bytes = bytes;
        self.quarantine_blocks = blocks;
        self
    }

    /// Sets whether each allocation captures a backtrace, which takes microseconds and kilobytes of
    /// host memory. Default: no. Symbols are looked up only when it is shown.
    pub const fn with_backtraces(mut self, capture: bool) -> Self {
        self.backtraces = capture;
        self
    }

    /// Sets when verdicts are read back. Default: [`Immediate`](GuardChecks::Immediate).
    pub const fn with_checks(mut self, checks: GuardChecks) -> Self {
        self.mode = checks;
        self
    }
}

impl<R: DeviceMemoryResource> ResourceLayer<R> for DebugGuardLayer {
    type Resource = DebugGuardResource<R>;

    fn layer(&self, upstream: R) -> Self::Resource {
        DebugGuardResource::new(upstream, self)
    }
}
