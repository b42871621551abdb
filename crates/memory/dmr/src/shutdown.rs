//! Returns the memory that a runtime keeps to the driver: when the program asks for it, and when
//! the process ends.

use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use dmr_core::ResourceError;
use dmr_core::at_exit::{self, AtExit};
use dmr_core::error::Holder;
use dmr_core::size::human_bytes;
use dmr_external::ForeignBlocks;
use dmr_pinned::PinnedPool;
use dmr_streams::{DeviceContext, StreamPool};

use crate::layers::Handles;
use crate::{DeviceRuntime, MAX_DEVICE_ORDINALS, SharedResource};

/// Shuts down every runtime of [`DeviceRuntime::try_get`], as
/// [`DeviceRuntime::shutdown`] does.
///
/// A program need not call this: when the process ends normally, each live runtime, from `try_get`
/// or built by the program, writes its log out and returns its unused memory to the driver. That
/// reports no errors, and is limited to 5 s per runtime if the device is busy or a lock is held,
/// and 10 s per log whose sink does not return. Call this to wait for all work, and to get errors
/// and the memory that is still in use.
///
/// # Errors
///
/// The first error; the other runtimes are shut down all the same.
pub fn shutdown() -> Result<(), ShutdownError> {
    let mut outcome = Ok(());
    for runtime in DeviceRuntime::shared() {
        outcome = outcome.and(runtime.shutdown());
    }
    outcome.and(dmr_pinned::reap_orphaned_pinned().map(drop).map_err(ShutdownError::from))
}

impl DeviceRuntime {
    /// Waits for the work of the runtime's streams, except for those that capture a graph. Then
    /// frees retired blocks, adopted memory and pinned memory, returns unused memory to the driver,
    /// and flushes the log.
    ///
    /// The runtime can still be used afterwards, and reserves memory again. Other threads may
    /// use it meanwhile; their blocks stay valid.
    ///
    /// # Errors
    ///
    /// [`ShutdownError::Resource`] if the device or the driver fails, [`ShutdownError::Log`] if
    /// rows of the log are lost, and else [`ShutdownError::InUse`] if blocks are not freed yet.
    /// Each step is made, whatever an earlier one returned; in a forked child none is.
    pub fn shutdown(&self) -> Result<(), ShutdownError> {
        if self.device().is_forked() {
            // Its locks may be held by threads that the child does not have.
            return Err(ResourceError::forked_process(self.ordinal()).into());
        }
        // All steps, whatever one of them returns: each frees memory that the others do not.
        let waited = self.streams().synchronize_all().map(drop);
        let reaped = self.resource().reap_pending().map(drop);
        let adopted = ForeignBlocks::of(self).resource().reap_pending().map(drop);
        let pinned =
            PinnedPool::of(self.streams()).reap_pending().and(self.trim_pinned(0)).map(drop);
        let trimmed = self.resource().trim_to(0).map(drop);
        #[cfg(feature = "logging")]
        let flushed = self.layers.log.as_ref().map_or(Ok(()), |log| log.flush());
        waited.and(reaped).and(adopted).and(pinned).and(trimmed)?;
        #[cfg(feature = "logging")]
        flushed?;
        let usage = self.resource().usage();
        if usage.outstanding() == 0 {
            return Ok(());
        }
        let live = usage.live;
        let retired = usage.retired;
        let device_ordinal = self.ordinal();
        let holders = self.unused_memory.holders();
        Err(ShutdownError::InUse { device_ordinal, live, retired, holders })
    }
}

/// The error of a [`shutdown`](DeviceRuntime::shutdown) that has not returned all memory.
///
/// Variants are `#[non_exhaustive]`: match on what you need and end with `..`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Waiting, reaping or trimming failed.
    #[error(transparent)]
    Resource(#[from] ResourceError),

    /// Rows of the log are lost.
    #[cfg(feature = "logging")]
    #[error("the log is incomplete: {0}")]
    Log(#[from] dmr_adaptors::logging::SinkError),

    /// Blocks are not freed yet, and keep their memory.
    #[non_exhaustive]
    #[error(
        "device {device_ordinal} is still in use: {} live and {} retired{}: deallocate the blocks, \
         and close the windows of those that are retired",
        human_bytes(*.live), human_bytes(*.retired), list(.holders)
    )]
    InUse {
        /// CUDA device ordinal.
        device_ordinal: usize,
        /// Bytes of live blocks.
        live: u64,
        /// Bytes of blocks that were freed and have a window that is still open.
        retired: u64,
        /// The tags that hold the most, largest first; empty if the backend is not the pool.
        holders: Box<[Holder]>,
    },
}

/// The memory that a runtime keeps although no block uses it.
#[derive(Clone, Debug)]
pub(crate) struct UnusedMemory {
    streams: Arc<StreamPool>,
    resource: SharedResource,
    #[cfg(feature = "pool")]
    pool: Option<Arc<dmr_pool::PoolResource<SharedResource>>>,
}

/// The time for which the end of the process waits for the work of the device.
const PATIENCE_WITH_DEVICE: Duration = Duration::from_secs(1);
/// The time for which it waits in all, also for other threads' locks and for the driver.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_micros(200);

impl UnusedMemory {
    /// Registers the unused memory of a new runtime, to be returned if the runtime is still live
    /// when the process ends.
    #[allow(unused_variables, reason = "what is used depends on the features")]
    pub(crate) fn at_exit(
        streams: &Arc<StreamPool>,
        resource: &SharedResource,
        layers: &Handles,
    ) -> Arc<Self> {
        let this = Arc::new(Self {
            streams: Arc::clone(streams),
            resource: Arc::clone(resource),
            #[cfg(feature = "pool")]
            pool: layers.pool.clone(),
        });
        at_exit::register(Arc::downgrade(&this) as Weak<dyn AtExit>);
        // Before the driver's handlers, which it may register as late as with the first context.
        // Once for each device, because each time takes a place in a list for good.
        static OPENED: [Once; MAX_DEVICE_ORDINALS] = [const { Once::new() }; MAX_DEVICE_ORDINALS];
        if let Some(opened) = OPENED.get(streams.device().ordinal()) {
            opened.call_once(at_exit::run_before_earlier_handlers);
        }
        this
    }

    fn holders(&self) -> Box<[Holder]> {
        #[cfg(feature = "pool")]
        if let Some(pool) = &self.pool {
            return pool.shortage().holders;
        }
        Box::default()
    }

    /// Returns idle memory to the driver at the end of the process, where errors have nowhere to
    /// go: the driver may be gone, or the device lost.
    fn return_at_exit(&self) {
        if self.streams.device().bind().is_err() {
            return;
        }
        let until = Instant::now() + PATIENCE_WITH_DEVICE;
        let Ok(is_idle) = self.streams.synchronize_until(until) else { return };
        // Reaping may wait for a busy device, and is a row of the log.
        if is_idle && self.resource.usage().retired > 0 {
            let _ = self.resource.try_reap();
        }
        // Freeing pinned memory may wait for a busy device, too.
        if is_idle {
            let _ = PinnedPool::of(&self.streams).trim_to(0);
        }
        let _ = self.resource.trim_to(0);
    }
}

impl AtExit for UnusedMemory {
    /// On a thread of its own, which can be left behind: the calling one may have been stopped
    /// inside of an allocation, with its locks held, and the driver may wait for the device.
    fn at_exit(&self) {
        let device = self.streams.device();
        if device.is_lost() || device.is_forked() {
            return;
        }
        // On a thread of its own: a call of the driver that never returns must not keep the process
        // from ending.
        let start = Instant::now();
        let this = self.clone();
        let thread = std::thread::Builder::new().name("dmr-exit".into());
        let Ok(thread) = thread.spawn(move || this.return_at_exit()) else { return };
        while !thread.is_finished() && start.elapsed() < PATIENCE {
            std::thread::sleep(POLL);
        }
    }
}

/// `; 3 GiB held by "weights" (2 blocks), ...`; nothing if there are none.
fn list(holders: &[Holder]) -> String {
    let line = |holder: &Holder| {
        let size = human_bytes(holder.bytes);
        format!("{size} held by \"{}\" ({} blocks)", holder.tag, holder.blocks)
    };
    let lines: Vec<_> = holders.iter().map(line).collect();
    if lines.is_empty() { String::new() } else { format!("; {}", lines.join(", ")) }
}
