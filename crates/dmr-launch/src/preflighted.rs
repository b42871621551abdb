//! A launch between preflight and commit.

use std::sync::Arc;

use dmr_core::{DeviceMemoryResource, ResourceResult, StreamId};
use dmr_streams::StreamPool;

use crate::LaunchMode;
use crate::windows::Windows;

/// A launch whose stream already waits for its dependencies, and whose uses are not recorded yet:
/// enqueue the work, then [`commit`](Self::commit).
///
/// Made by [`LaunchRecorder::preflight`](crate::LaunchRecorder::preflight). While it exists, other
/// streams cannot prepare a conflicting use of the same blocks. It keeps the resource alive, so it
/// may outlive the context it was preflighted on.
///
/// # Dropped without a commit
///
/// Work may have been enqueued, so the uses are recorded as if it was. The launch is counted
/// ([`uncommitted_launches`](crate::uncommitted_launches)) and, with the feature `tracing`,
/// reported as a warning. If nothing was enqueued, [`cancel`](Self::cancel).
///
/// # Misuse does not compile
///
/// Recording after preflight:
///
/// ```compile_fail,E0382
/// # use dmr_core::DeviceBlock;
/// # use dmr_launch::LaunchRecorder;
/// # use dmr_streams::DeviceContext;
/// fn late(ctx: &impl DeviceContext, x: &DeviceBlock, y: &DeviceBlock) {
///     let mut recorder = LaunchRecorder::new_strict(ctx.streams().default_stream());
///     recorder.read(x);
///     let launch = recorder.preflight(ctx).unwrap();
///     recorder.read(y); // moved into `launch`
///     launch.commit().unwrap();
/// }
/// ```
///
/// Recording on the preflighted launch:
///
/// ```compile_fail,E0599
/// # use dmr_core::DeviceBlock;
/// # use dmr_launch::LaunchRecorder;
/// # use dmr_streams::DeviceContext;
/// fn late(ctx: &impl DeviceContext, y: &DeviceBlock) {
///     let recorder = LaunchRecorder::new_strict(ctx.streams().default_stream());
///     let mut launch = recorder.preflight(ctx).unwrap();
///     launch.read(y); // no such method
/// }
/// ```
///
/// Committing twice:
///
/// ```compile_fail,E0382
/// # use dmr_launch::LaunchRecorder;
/// # use dmr_streams::DeviceContext;
/// fn twice(ctx: &impl DeviceContext) {
///     let recorder = LaunchRecorder::new_strict(ctx.streams().default_stream());
///     let launch = recorder.preflight(ctx).unwrap();
///     launch.commit().unwrap();
///     launch.commit().unwrap(); // moved
/// }
/// ```
#[derive(Debug)]
#[must_use = "commit it once the work is enqueued"]
pub struct PreflightedLaunch {
    windows: Windows<Arc<StreamPool>, Arc<dyn DeviceMemoryResource>>,
    stream: StreamId,
    mode: LaunchMode,
    recorded: usize,
    skipped: usize,
}

impl PreflightedLaunch {
    pub(crate) fn new(
        windows: Windows<Arc<StreamPool>, Arc<dyn DeviceMemoryResource>>,
        stream: StreamId,
        mode: LaunchMode,
        (recorded, skipped): (usize, usize),
    ) -> Self {
        Self { windows, stream, mode, recorded, skipped }
    }

    /// Records the uses, so that later ones wait for them. Call it when all work is enqueued.
    ///
    /// One event at most, whatever the number of uses.
    ///
    /// # Errors
    ///
    /// As [`finish`](dmr_core::UseTracking::finish) of the resource: later uses wait for the work all the same.
    pub fn commit(mut self) -> ResourceResult<()> {
        self.windows.finish()
    }

    /// Closes the windows without recording uses: no work was enqueued. The waits that preflight has queued remain.
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

    /// Returns the number of blocks with an open window.
    #[must_use]
    pub fn recorded_count(&self) -> usize {
        self.recorded
    }

    /// Returns the number of uses that a permissive launch has skipped: of external memory, and of blocks whose
    /// uses the context's resource does not track. The caller orders them.
    #[must_use]
    pub fn skipped_count(&self) -> usize {
        self.skipped
    }
}
