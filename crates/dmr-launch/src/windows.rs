//! The open windows of one launch: closed by a commit, a cancel, or as if committed.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use dmr_core::{DeviceMemoryResource, ResourceResult};
use dmr_streams::{LaunchTokens, StreamPool};

static UNCOMMITTED: AtomicU64 = AtomicU64::new(0);

/// How many launches of this process were preflighted and then neither committed nor cancelled.
///
/// Their uses were recorded when they were dropped, as if committed. Each is a mistake, or a panic
/// between preflight and commit.
#[must_use]
pub fn uncommitted_launches() -> u64 {
    UNCOMMITTED.load(Ordering::Relaxed)
}

/// The open windows of a launch on these streams, with blocks of this resource. They are closed in any
/// case.
#[derive(Debug)]
pub(crate) struct Windows<S: Deref<Target = StreamPool>, R: DeviceMemoryResource> {
    streams: S,
    resource: R,
    /// `None` when they have been closed.
    tokens: Option<LaunchTokens>,
}

impl<S: Deref<Target = StreamPool>, R: DeviceMemoryResource> Windows<S, R> {
    pub(crate) fn new(streams: S, resource: R, tokens: LaunchTokens) -> Self {
        Self { streams, resource, tokens: Some(tokens) }
    }

    pub(crate) fn finish(mut self) -> ResourceResult<()> {
        let tokens = self.tokens.take();
        tokens.map_or(Ok(()), |tokens| tokens.finish(&self.streams, &self.resource))
    }

    pub(crate) fn cancel(mut self) -> ResourceResult<()> {
        let tokens = self.tokens.take();
        tokens.map_or(Ok(()), |tokens| tokens.cancel(&self.streams, &self.resource))
    }
}

/// The work may be in flight, so it counts as submitted.
impl<S: Deref<Target = StreamPool>, R: DeviceMemoryResource> Drop for Windows<S, R> {
    fn drop(&mut self) {
        let Some(tokens) = self.tokens.take().filter(|tokens| !tokens.is_empty()) else { return };
        UNCOMMITTED.fetch_add(1, Ordering::Relaxed);
        let (stream, uses) = (tokens.stream(), tokens.len());
        // A panic in here could abort the process: this may already be unwinding.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            report(stream, uses, tokens.finish(&self.streams, &self.resource));
        }));
    }
}

#[cfg(feature = "tracing")]
fn report(stream: dmr_core::StreamId, uses: usize, recorded: ResourceResult<()>) {
    match recorded {
        Ok(()) => tracing::warn!(
            %stream, uses, "a preflighted launch was dropped without a commit: its uses were recorded"
        ),
        Err(error) => tracing::error!(
            %stream, uses, %error,
            "a preflighted launch was dropped without a commit, and recording its uses failed"
        ),
    }
}

/// The count says that it happened; what could not be recorded, the resource keeps apart.
#[cfg(not(feature = "tracing"))]
fn report(_: dmr_core::StreamId, _: usize, _: ResourceResult<()>) {}
