//! The windows of one launch: on pinned memory in the use table itself, on blocks through their resource.

use dmr_core::{BlockUse, DeviceMemoryResource, ResourceResult, StreamId, UseTokens};

use crate::StreamPool;

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
    /// Makes `stream`, of `streams`, wait for what the uses must come after, and opens their windows:
    /// those of `pinned` in the use table of `streams`, those of `blocks` through `resource`. Does not
    /// call the resource if there are no `blocks`.
    ///
    /// # Errors
    ///
    /// As [`UseTable::prepare`](crate::UseTable::prepare) and
    /// [`prepare_uses`](DeviceMemoryResource::prepare_uses). No window is open then.
    #[inline]
    pub fn prepare<R: DeviceMemoryResource + ?Sized>(
        streams: &StreamPool,
        resource: &R,
        (pinned, blocks): (&[BlockUse], &[BlockUse]),
        stream: StreamId,
    ) -> ResourceResult<Self> {
        let pinned = match pinned {
            [] => UseTokens::new(stream),
            _ => streams.uses().prepare(pinned, stream)?,
        };
        let blocks = match blocks {
            [] => Ok(UseTokens::new(stream)),
            _ => resource.prepare_uses(blocks, stream),
        };
        match blocks {
            Ok(blocks) => Ok(Self { pinned, blocks }),
            Err(error) => {
                // That error says more than one of a window that cannot be closed.
                let _ = streams.uses().cancel(pinned);
                Err(error)
            }
        }
    }

    /// Records the uses, whose work has been submitted by now, and closes their windows. Records one
    /// event if the resource tracks uses in the use table of `streams`. Call it with the resource and
    /// the streams that the uses were prepared with.
    ///
    /// # Errors
    ///
    /// As [`UseTable::finish_uses`](crate::UseTable::finish_uses) and
    /// [`finish_uses`](DeviceMemoryResource::finish_uses); no work is left unprotected.
    #[inline]
    pub fn finish<R: DeviceMemoryResource + ?Sized>(
        self,
        streams: &StreamPool,
        resource: &R,
    ) -> ResourceResult<()> {
        let Self { pinned, blocks } = self;
        if pinned.is_empty() && blocks.is_empty() {
            return Ok(());
        }
        if pinned.is_empty() {
            return resource.finish_uses(blocks);
        }
        if blocks.is_empty() {
            return streams.uses().finish_uses(pinned);
        }
        // The event of the blocks covers the pinned memory, too. If the resource records none, what must
        // come after the use of the pinned memory records one.
        let pinned = streams.uses().finish_without_event(pinned);
        pinned.and(resource.finish_uses(blocks))
    }

    /// Closes the windows of uses whose work was not submitted. Call it with the resource and the
    /// streams that the uses were prepared with.
    ///
    /// # Errors
    ///
    /// As [`UseTable::cancel`](crate::UseTable::cancel) and
    /// [`cancel_uses`](DeviceMemoryResource::cancel_uses).
    pub fn cancel<R: DeviceMemoryResource + ?Sized>(
        self,
        streams: &StreamPool,
        resource: &R,
    ) -> ResourceResult<()> {
        let pinned = streams.uses().cancel(self.pinned);
        let blocks = match self.blocks.is_empty() {
            true => Ok(()),
            false => resource.cancel_uses(self.blocks),
        };
        pinned.and(blocks)
    }

    /// Returns the stream of the launch.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.blocks.stream()
    }

    /// Returns the number of open windows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pinned.len() + self.blocks.len()
    }

    /// Returns whether no window is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
