//! A launch between prepare and finish.

use std::sync::Arc;

use dmr_core::{DeviceMemoryResource, ResourceResult, StreamId};
use dmr_streams::{Declaration, StreamPool};

use crate::mode::LaunchMode;
use crate::uses::LaunchUses;
use crate::windows::Windows;

/// A launch whose stream already waits for its dependencies, and whose uses are not recorded yet:
/// enqueue the work, then [`finish`](Self::finish).
///
/// Made by [`LaunchRecorder::prepare`](crate::LaunchRecorder::prepare). While it exists, other
/// streams cannot prepare a conflicting use of the same blocks. It keeps the resource alive, so it
/// may outlive the context it was prepared on.
///
/// # Dropped unfinished
///
/// Work may have been enqueued, so the uses are recorded as if it was. The launch is counted
/// ([`unfinished_launches`](crate::unfinished_launches)) and, with the feature `tracing`,
/// reported as a warning. If nothing was enqueued, [`cancel`](Self::cancel).
///
/// # Misuse does not compile
///
/// Recording after prepare:
///
/// ```compile_fail,E0382
/// # use dmr_core::DeviceBlock;
/// # use dmr_launch::LaunchRecorder;
/// # use dmr_streams::DeviceContext;
/// fn late(ctx: &impl DeviceContext, x: &DeviceBlock, y: &DeviceBlock) {
///     let mut recorder = LaunchRecorder::new_strict(ctx.streams().default_stream());
///     recorder.read(x);
///     let launch = recorder.prepare(ctx).unwrap();
///     recorder.read(y); // moved into `launch`
///     launch.finish().unwrap();
/// }
/// ```
///
/// Recording on the prepared launch:
///
/// ```compile_fail,E0599
/// # use dmr_core::DeviceBlock;
/// # use dmr_launch::LaunchRecorder;
/// # use dmr_streams::DeviceContext;
/// fn late(ctx: &impl DeviceContext, y: &DeviceBlock) {
///     let recorder = LaunchRecorder::new_strict(ctx.streams().default_stream());
///     let mut launch = recorder.prepare(ctx).unwrap();
///     launch.read(y); // no such method
/// }
/// ```
///
/// Finishing twice:
///
/// ```compile_fail,E0382
/// # use dmr_launch::LaunchRecorder;
/// # use dmr_streams::DeviceContext;
/// fn twice(ctx: &impl DeviceContext) {
///     let recorder = LaunchRecorder::new_strict(ctx.streams().default_stream());
///     let launch = recorder.prepare(ctx).unwrap();
///     launch.finish().unwrap();
///     launch.finish().unwrap(); // moved
/// }
/// ```
#[derive(Debug)]
#[must_use = "finish it once the work is enqueued"]
pub struct PreparedLaunch {
    windows: Windows<Arc<StreamPool>, Arc<dyn DeviceMemoryResource>>,
    stream: StreamId,
    mode: LaunchMode,
    recorded: usize,
    skipped: usize,
    /// On the simulated driver, what its work may access. Ends after the windows.
    _declared: Option<Declaration>,
}

impl PreparedLaunch {
    pub(crate) fn new(
        windows: Windows<Arc<StreamPool>, Arc<dyn DeviceMemoryResource>>,
        stream: StreamId,
        uses: &LaunchUses,
        declared: Option<Declaration>,
    ) -> Self {
        Self {
            windows,
            stream,
            mode: uses.mode,
            recorded: uses.count(),
            skipped: uses.skipped,
            _declared: declared,
        }
    }

    /// Records the uses, so that later ones wait for them. Call it when all work is enqueued.
    ///
    /// One event at most, whatever the number of uses.
    ///
    /// # Errors
    ///
    /// As [`finish`](dmr_core::UseTracking::finish) of the resource: later uses wait for the work
    /// all the same.
    pub fn finish(mut self) -> ResourceResult<()> {
        self.windows.finish()
    }

    /// Closes the windows without recording uses: no work was enqueued. The waits that prepare has
    /// queued remain.
    ///
    /// # Errors
    ///
    /// As [`cancel`](dmr_core::UseTracking::cancel) of the resource.
    pub fn cancel(mut self) -> ResourceResult<()> {
        self.windows.cancel()
    }

    /// Returns the stream to enqueue on, resolved: never [`StreamId::DEFAULT`].
    #[must_use]
    pub fn launch_stream(&self) -> StreamId {
        self.stream
    }

    /// Returns the treatment of memory whose uses are not tracked.
    #[must_use]
    pub fn mode(&self) -> LaunchMode {
        self.mode
    }

    /// Returns the number of open windows: of different blocks, and parts of blocks.
    #[must_use]
    pub fn recorded_count(&self) -> usize {
        self.recorded
    }

    /// Returns the number of uses that a permissive launch has skipped: of external memory, and of
    /// blocks whose uses the context's resource does not track. The caller orders them.
    #[must_use]
    pub fn skipped_count(&self) -> usize {
        self.skipped
    }
}
