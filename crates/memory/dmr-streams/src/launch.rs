//! The windows of one launch: on host memory in the use table itself, on blocks through their
//! resource.

use dmr_core::{
    BlockUse, DeviceMemoryResource, ResourceError, ResourceResult, StreamId, UseTokens, UseTracking,
};

use smallvec::SmallVec;

use crate::{StreamGuard, StreamPool};

/// The open windows of one launch: all of them were opened, or none.
///
/// The uses of pinned memory are prepared in the use table of the stream pool, and so are those of
/// blocks of a resource whose memory is [host memory](dmr_core::BlockSlot::of_host_memory), which
/// are also prepared through that resource. A resource may be any implementation of a safe trait,
/// and the host must not get pinned memory back while the device uses it, whatever the resource
/// does.
///
/// Dropping this leaves the windows open: their blocks are never freed.
#[derive(Debug)]
#[must_use = "uses that are never finished keep their blocks from being freed"]
pub struct LaunchTokens {
    /// Opened in the use table, which no resource closes.
    host: UseTokens,
    /// Opened by the resource.
    blocks: UseTokens,
}

impl LaunchTokens {
    /// No windows yet, on `stream`.
    #[inline]
    pub fn new(stream: StreamId) -> Self {
        Self { host: UseTokens::new(stream), blocks: UseTokens::new(stream) }
    }

    /// Makes the stream, which was entered, wait for what the uses must come after, and opens their
    /// windows: those of `pinned` in the use table of its pool, those of `blocks` through
    /// `resource`. Does not call the resource if there are no `blocks`.
    ///
    /// Of each stream that has used the memory, the launch's stream waits for one event at most for
    /// `pinned`, and for a later one at most for `blocks`.
    ///
    /// # Errors
    ///
    /// As [`UseTable::prepare`](crate::UseTable::prepare) and [`UseTracking::prepare`]. No window
    /// of these uses is open then; windows that were open before are.
    #[inline]
    pub fn prepare<R: DeviceMemoryResource + ?Sized>(
        &mut self,
        stream: &StreamGuard<'_>,
        resource: &R,
        pinned: &[BlockUse],
        blocks: &[BlockUse],
    ) -> ResourceResult<()> {
        let streams = stream.pool();
        let open = self.host.len();
        if !pinned.is_empty() {
            streams.uses().prepare_on(stream, pinned, &mut self.host)?;
        }
        if blocks.is_empty() {
            return Ok(());
        }
        let opened = Opened { streams, host: &mut self.host, open };
        if blocks.iter().any(is_of_host_memory) {
            prepare_host_memory(stream, blocks, opened.host)?;
        }
        let tracking = resource.use_tracking();
        let tracking = tracking.ok_or_else(|| ResourceError::not_tracked(opened.host.stream()))?;
        tracking.prepare(blocks, &mut self.blocks)?;
        std::mem::forget(opened);
        Ok(())
    }

    /// Records the uses, whose work has been submitted by now, and closes their windows. Records
    /// one event if the resource tracks uses in the use table of `streams`. Call it with the
    /// resource and the streams that the uses were prepared with.
    ///
    /// # Errors
    ///
    /// As [`UseTable::finish`](crate::UseTable::finish) and [`UseTracking::finish`]; no work is
    /// left unprotected.
    #[inline]
    pub fn finish<R: DeviceMemoryResource + ?Sized>(
        &mut self,
        streams: &StreamPool,
        resource: &R,
    ) -> ResourceResult<()> {
        let host = match (self.host.is_empty(), self.blocks.is_empty()) {
            (true, true) => return Ok(()),
            (true, false) => Ok(()),
            (false, true) => return streams.uses().finish_in(&mut self.host),
            // The event of the blocks covers the host memory, too. If the resource records none,
            // what must come after the use of the host memory records one.
            (false, false) => streams.uses().finish_without_event(&mut self.host),
        };
        let finished = self.tracking(resource).and_then(|it| it.finish(&mut self.blocks));
        host.and(finished)
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
        let host = streams.uses().cancel_in(&mut self.host);
        if self.blocks.is_empty() {
            return host;
        }
        let cancelled = self.tracking(resource).and_then(|it| it.cancel(&mut self.blocks));
        host.and(cancelled)
    }

    /// Returns the stream of the launch.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.host.stream()
    }

    /// Returns the number of open windows: two for each use of a block of a resource in host
    /// memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.host.len() + self.blocks.len()
    }

    /// Returns whether no window is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.host.is_empty() && self.blocks.is_empty()
    }

    #[inline]
    fn tracking<'r, R: DeviceMemoryResource + ?Sized>(
        &self,
        resource: &'r R,
    ) -> ResourceResult<&'r dyn UseTracking> {
        resource.use_tracking().ok_or_else(|| ResourceError::not_tracked(self.stream()))
    }
}

#[inline]
fn is_of_host_memory(used: &BlockUse) -> bool {
    used.block.slot().is_of_host_memory()
}

/// Opens the windows of those uses that are of host memory.
#[cold]
fn prepare_host_memory(
    stream: &StreamGuard<'_>,
    blocks: &[BlockUse],
    host: &mut UseTokens,
) -> ResourceResult<()> {
    let of_host: SmallVec<[BlockUse; 8]> =
        blocks.iter().copied().filter(is_of_host_memory).collect();
    stream.pool().uses().prepare_on(stream, &of_host, host)
}

/// Windows of host memory that were opened, from an index on. Dropping this closes them, also when
/// a resource panics.
struct Opened<'a> {
    streams: &'a StreamPool,
    host: &'a mut UseTokens,
    open: usize,
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // They are open, so closing them is no error.
        let _ = self.streams.uses().cancel_from(self.host, self.open);
    }
}
