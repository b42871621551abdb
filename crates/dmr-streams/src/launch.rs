//! The windows of one launch: on pinned memory in the use table itself, on blocks through their resource.

use dmr_core::{
    BlockUse, DeviceMemoryResource, ResourceError, ResourceResult, StreamId, UseTokens, UseTracking,
};

use crate::{StreamGuard, StreamPool};

/// The open windows of one launch: all of them were opened, or none.
///
/// The uses of pinned memory are prepared in the use table of the stream pool. A resource may be any
/// implementation of a safe trait, and the host must not get pinned memory back while the device uses
/// it, whatever the resource does.
///
/// Dropping this leaves the windows open: their blocks are never freed.
#[derive(Debug)]
#[must_use = "uses that are never finished keep their blocks from being freed"]
pub struct LaunchTokens {
    pinned: UseTokens,
    blocks: UseTokens,
}

impl LaunchTokens {
    /// No windows yet, on `stream`.
    #[inline]
    pub fn new(stream: StreamId) -> Self {
        Self { pinned: UseTokens::new(stream), blocks: UseTokens::new(stream) }
    }

    /// Makes the stream, which was entered, wait for what the uses must come after, and opens their windows:
    /// those of `pinned` in the use table of its pool, those of `blocks` through `resource`. Does not call the
    /// resource if there are no `blocks`.
    ///
    /// Of each stream that has used the memory, the launch's stream waits for one event at most for `pinned`,
    /// and for a later one at most for `blocks`.
    ///
    /// # Errors
    ///
    /// As [`UseTable::prepare`](crate::UseTable::prepare) and [`UseTracking::prepare`]. No window of these
    /// uses is open then; windows that were open before are.
    #[inline]
    pub fn prepare<R: DeviceMemoryResource + ?Sized>(
        &mut self,
        stream: &StreamGuard<'_>,
        resource: &R,
        pinned: &[BlockUse],
        blocks: &[BlockUse],
    ) -> ResourceResult<()> {
        let (streams, open) = (stream.pool(), self.pinned.len());
        if !pinned.is_empty() {
            streams.uses().prepare_on(stream, pinned, &mut self.pinned)?;
        }
        if blocks.is_empty() {
            return Ok(());
        }
        let opened = Opened { streams, pinned: &mut self.pinned, open };
        let tracking = resource.use_tracking();
        let tracking =
            tracking.ok_or_else(|| ResourceError::not_tracked(opened.pinned.stream()))?;
        tracking.prepare(blocks, &mut self.blocks)?;
        std::mem::forget(opened);
        Ok(())
    }

    /// Records the uses, whose work has been submitted by now, and closes their windows. Records one
    /// event if the resource tracks uses in the use table of `streams`. Call it with the resource and
    /// the streams that the uses were prepared with.
    ///
    /// # Errors
    ///
    /// As [`UseTable::finish`](crate::UseTable::finish) and [`UseTracking::finish`]; no work is left
    /// unprotected.
    #[inline]
    pub fn finish<R: DeviceMemoryResource + ?Sized>(
        &mut self,
        streams: &StreamPool,
        resource: &R,
    ) -> ResourceResult<()> {
        let pinned = match (self.pinned.is_empty(), self.blocks.is_empty()) {
            (true, true) => return Ok(()),
            (true, false) => Ok(()),
            (false, true) => return streams.uses().finish_in(&mut self.pinned),
            // The event of the blocks covers the pinned memory, too. If the resource records none, what
            // must come after the use of the pinned memory records one.
            (false, false) => streams.uses().finish_without_event(&mut self.pinned),
        };
        let finished = self.tracking(resource).and_then(|it| it.finish(&mut self.blocks));
        pinned.and(finished)
    }

    /// Closes the windows of uses whose work was not submitted. Call it with the resource and the
    /// streams that the uses were prepared with.
    ///
    /// # Errors
    ///
    /// As [`UseTable::cancel`](crate::UseTable::cancel) and [`UseTracking::cancel`].
    pub fn cancel<R: DeviceMemoryResource + ?Sized>(
        &mut self,
        streams: &StreamPool,
        resource: &R,
    ) -> ResourceResult<()> {
        let pinned = streams.uses().cancel_in(&mut self.pinned);
        if self.blocks.is_empty() {
            return pinned;
        }
        let cancelled = self.tracking(resource).and_then(|it| it.cancel(&mut self.blocks));
        pinned.and(cancelled)
    }

    /// Returns the stream of the launch.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.pinned.stream()
    }

    /// Returns the number of open windows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pinned.len() + self.blocks.len()
    }

    /// Returns whether no window is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pinned.is_empty() && self.blocks.is_empty()
    }

    #[inline]
    fn tracking<'r, R: DeviceMemoryResource + ?Sized>(
        &self,
        resource: &'r R,
    ) -> ResourceResult<&'r dyn UseTracking> {
        resource.use_tracking().ok_or_else(|| ResourceError::not_tracked(self.stream()))
    }
}

/// Windows of pinned memory that were opened, from an index on. Dropping this closes them, also when a
/// resource panics.
struct Opened<'a> {
    streams: &'a StreamPool,
    pinned: &'a mut UseTokens,
    open: usize,
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // They are open, so closing them is no error.
        let _ = self.streams.uses().cancel_from(self.pinned, self.open);
    }
}
