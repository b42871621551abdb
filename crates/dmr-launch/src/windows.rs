//! The open windows of one launch: closed by a commit, a cancel, or as if committed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use dmr_core::{DeviceMemoryResource, ResourceResult, UseTokens};

static UNCOMMITTED: AtomicU64 = AtomicU64::new(0);

/// How many launches of this process were preflighted and then neither committed nor cancelled.
///
/// Their uses were recorded when they were dropped, as if committed. Each is a mistake, or a panic
/// between preflight and commit.
#[must_use]
pub fn uncommitted_launches() -> u64 {
    UNCOMMITTED.load(Ordering::Relaxed)
}

/// Windows that are closed in any case. `None`: there are none, or they have been closed.
#[derive(Debug)]
pub(crate) struct Windows<R: DeviceMemoryResource>(Option<(R, UseTokens)>);

impl<R: DeviceMemoryResource> Windows<R> {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn new(resource: R, tokens: UseTokens) -> Self {
        Self(Some((resource, tokens)))
    }

    pub(crate) fn finish(mut self) -> ResourceResult<()> {
        self.0.take().map_or(Ok(()), |(resource, tokens)| resource.finish_uses(tokens))
    }

    pub(crate) fn cancel(mut self) -> ResourceResult<()> {
        self.0.take().map_or(Ok(()), |(resource, tokens)| resource.cancel_uses(tokens))
    }
}

/// The work may be in flight, so it counts as submitted.
impl<R: DeviceMemoryResource> Drop for Windows<R> {
    fn drop(&mut self) {
        let Some((resource, tokens)) = self.0.take() else { return };
        UNCOMMITTED.fetch_add(1, Ordering::Relaxed);
        let (stream, uses) = (tokens.stream(), tokens.len());
        // A panic in here could abort the process: this may already be unwinding.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            report(stream, uses, resource.finish_uses(tokens));
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
