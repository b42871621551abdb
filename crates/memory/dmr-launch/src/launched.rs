//! A launch whose closure runs: its end orders what the closure has submitted, however the closure
//! ends.

use std::ops::Deref;

use dmr_core::{DeviceMemoryResource, ResourceResult, panics};
use dmr_streams::StreamPool;

use crate::LaunchError;
use crate::others::OtherStreams;
use crate::windows::Windows;

/// The windows of a launch, and its uses on other streams. Dropping it ends both, as after a panic.
///
/// Borrows the windows, which are hundreds of bytes long.
#[derive(Debug)]
pub(crate) struct Launched<'l, S: Deref<Target = StreamPool>, R: DeviceMemoryResource> {
    others: &'l OtherStreams<'l>,
    windows: &'l mut Windows<S, R>,
    is_ended: bool,
}

impl<'l, S: Deref<Target = StreamPool>, R: DeviceMemoryResource> Launched<'l, S, R> {
    #[inline]
    pub(crate) fn new(others: &'l OtherStreams<'l>, windows: &'l mut Windows<S, R>) -> Self {
        Self { others, windows, is_ended: false }
    }

    /// Orders the uses on other streams before the launch's end, and records the uses.
    #[inline]
    pub(crate) fn end<T, E>(mut self, enqueued: Result<T, E>) -> Result<T, LaunchError<E>> {
        let viewed = self.end_uses();
        let finished = self.windows.finish();
        if viewed.is_ok() && finished.is_ok() {
            return enqueued.map_err(|error| LaunchError::Enqueue { error, finish: None });
        }
        failed(enqueued, viewed, finished)
    }

    #[inline]
    fn end_uses(&mut self) -> ResourceResult<()> {
        self.is_ended = true;
        let end = self.others.end();
        if !end.is_protected {
            self.windows.leave_open();
        }
        end.outcome
    }
}

impl<S: Deref<Target = StreamPool>, R: DeviceMemoryResource> Drop for Launched<'_, S, R> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_ended {
            // The closure has panicked: its panic goes on, and another one would abort the process.
            let _ = panics::catch(|| self.end_uses());
        }
    }
}

/// Returns the outcome of a launch whose end has failed.
#[cold]
fn failed<T, E>(
    enqueued: Result<T, E>,
    viewed: ResourceResult<()>,
    finished: ResourceResult<()>,
) -> Result<T, LaunchError<E>> {
    match (enqueued, viewed, finished) {
        (Ok(value), Ok(()), Ok(())) => Ok(value),
        (Ok(_), Ok(()), Err(error)) => Err(LaunchError::Finish(error)),
        (Ok(_), Err(error), _) => Err(LaunchError::View(error)),
        (Err(error), viewed, finished) => {
            Err(LaunchError::Enqueue { error, finish: viewed.and(finished).err() })
        }
    }
}
