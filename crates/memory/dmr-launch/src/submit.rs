//! The steps that all launches with the same uses make, once or many times: open the windows, run
//! the closure, end.

use std::ops::Deref;
use std::time::Duration;

use dmr_core::{DeviceMemoryResource, ResourceError, StreamId};
use dmr_streams::{Declaration, Device, DeviceContext, StreamGuard, StreamPool};
#[cfg(feature = "nvtx")]
use smallvec::SmallVec;

use crate::launched::Launched;
use crate::mode::LaunchMode;
use crate::others::OtherStreams;
#[cfg(feature = "nvtx")]
use crate::uses::INLINE;
use crate::uses::LaunchUses;
use crate::windows::Windows;
use crate::{LaunchError, PrepareError};

/// The stream of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Stream<'s> {
    pub(crate) guard: &'s StreamGuard<'s>,
    /// Its id as the caller has passed it, for errors.
    pub(crate) id: StreamId,
}

impl LaunchUses {
    /// Opens the windows of uses that are tracked, runs `enqueue`, and records them, with those on
    /// other streams. Waits up to `timeout` for windows of other streams.
    #[inline]
    pub(crate) fn launch<C, T, E>(
        &self,
        ctx: &C,
        stream: Stream<'_>,
        timeout: Duration,
        enqueue: impl FnOnce(&StreamGuard<'_>, &OtherStreams<'_>) -> Result<T, E>,
    ) -> Result<T, LaunchError<E>>
    where
        C: DeviceContext + ?Sized,
    {
        let streams = ctx.streams();
        let guard = stream.guard;
        let mut windows = Windows::new(&**streams, &**ctx.resource(), guard.id());
        self.open(&mut windows, stream, timeout)?;
        let others = OtherStreams::new(guard);
        let launched = Launched::new(&others, &mut windows);
        let declared = match Declaration::is_compared() {
            false => None,
            true => self.declare(streams.device(), None),
        };
        let enqueued = self.restricted(|| enqueue(guard, &others));
        drop(declared);
        launched.end(enqueued)
    }

    /// Opens all windows or none.
    #[inline]
    pub(crate) fn open<S: Deref<Target = StreamPool>, R: DeviceMemoryResource>(
        &self,
        windows: &mut Windows<S, R>,
        stream: Stream<'_>,
        timeout: Duration,
    ) -> Result<(), PrepareError> {
        let Stream { guard, id } = stream;
        let opened = match windows.open(guard, self) {
            Err(ResourceError::WindowConflict { .. }) if !timeout.is_zero() => {
                windows.open_within(timeout, guard, self)
            }
            opened => opened,
        };
        opened.map_err(|error| self.refused(id, error))
    }

    pub(crate) fn refused(&self, stream: StreamId, source: ResourceError) -> PrepareError {
        PrepareError::Resource { stream, source, columns: self.named_columns() }
    }

    /// Declares the recorded uses of a strict launch to the simulated driver, for the work that
    /// this thread submits to `stream`, or to all streams. The work of a permissive launch may
    /// access anything.
    #[cold]
    #[inline(never)]
    pub(crate) fn declare(
        &self,
        device: &Device,
        stream: Option<&StreamGuard<'_>>,
    ) -> Option<Declaration> {
        let uses = (self.mode == LaunchMode::Strict).then(|| self.iter());
        Declaration::begin(device, stream, uses)
    }

    /// Runs `work`. Under memcheck its kernels are restricted to the recorded uses.
    #[cfg(feature = "nvtx")]
    fn restricted<T>(&self, work: impl FnOnce() -> T) -> T {
        dmr_nvtx::range(c"launch", || match self.mode {
            LaunchMode::Strict => {
                let uses: SmallVec<[_; INLINE]> = self.iter().copied().collect();
                dmr_nvtx::restricted(&uses, work)
            }
            LaunchMode::Permissive => dmr_nvtx::unrestricted(work),
        })
    }

    #[cfg(not(feature = "nvtx"))]
    fn restricted<T>(&self, work: impl FnOnce() -> T) -> T {
        work()
    }
}
