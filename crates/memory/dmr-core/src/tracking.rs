//! Tracking of uses: a launch prepares them, and finishes or cancels them.

use crate::{
    Access, BlockId, BlockUse, DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult,
    StreamId, UseTokens,
};

/// Orders the uses of a resource's blocks on any stream of its pool:
/// [`use_tracking`](DeviceMemoryResource::use_tracking).
///
/// A use is *prepared* before its work is submitted, and *finished* afterwards, or *cancelled* if
/// nothing was submitted. Its window is open in between: no other stream can prepare a use that
/// conflicts.
pub trait UseTracking {
    /// Makes the stream of `tokens` wait for what the uses must come after, opens a window for
    /// each, and adds the windows to `tokens`: all of them, or none.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse); [`UseAfterFree`](ResourceError::UseAfterFree)
    /// for a stale id; [`WindowConflict`](ResourceError::WindowConflict) while another stream has a
    /// conflicting window open; [`StreamCapturing`](ResourceError::StreamCapturing);
    /// [`Driver`](ResourceError::Driver). No uses are no error.
    fn prepare(&self, uses: &[BlockUse], tokens: &mut UseTokens) -> ResourceResult<()>;

    /// Records the uses, whose work has been submitted by now, with at most one event, closes their
    /// windows, and removes the windows from `tokens`.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare); later uses wait for the work all the same. No uses are no
    /// error.
    fn finish(&self, tokens: &mut UseTokens) -> ResourceResult<()>;

    /// Closes windows without recording a use, for work that was not submitted, and removes them
    /// from `tokens`.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    fn cancel(&self, tokens: &mut UseTokens) -> ResourceResult<()>;
}

/// The steps of a use on a resource that may or may not track uses. If it does not, every use
/// returns [`StreamMisuse`](ResourceError::StreamMisuse).
pub trait UseTrackingExt: DeviceMemoryResource {
    /// Returns whether uses on other streams than the home stream can be declared.
    fn supports_block_use_tracking(&self) -> bool {
        self.use_tracking().is_some()
    }

    /// Prepares all uses of one launch: [`UseTracking::prepare`].
    ///
    /// # Errors
    ///
    /// As [`UseTracking::prepare`]; [`StreamMisuse`](ResourceError::StreamMisuse) if the resource
    /// does not track uses.
    #[inline]
    fn prepare_uses(&self, uses: &[BlockUse], stream: StreamId) -> ResourceResult<UseTokens> {
        let mut tokens = UseTokens::new(stream);
        match self.use_tracking() {
            Some(tracking) => tracking.prepare(uses, &mut tokens)?,
            None if uses.is_empty() => {}
            None => return Err(ResourceError::not_tracked(stream)),
        }
        Ok(tokens)
    }

    /// Prepares a launch that uses one block.
    ///
    /// # Errors
    ///
    /// As [`prepare_uses`](Self::prepare_uses).
    fn prepare_block_use(
        &self,
        block: BlockId,
        stream: StreamId,
        access: Access,
    ) -> ResourceResult<UseTokens> {
        self.prepare_uses(&[BlockUse::new(block, access)], stream)
    }

    /// Finishes all uses of one launch: [`UseTracking::finish`].
    ///
    /// # Errors
    ///
    /// As [`UseTracking::finish`]; [`StreamMisuse`](ResourceError::StreamMisuse) if the resource
    /// does not track uses.
    #[inline]
    fn finish_uses(&self, mut tokens: UseTokens) -> ResourceResult<()> {
        match self.use_tracking() {
            Some(tracking) => tracking.finish(&mut tokens),
            None => refuse(&tokens),
        }
    }

    /// Closes the windows of a launch that was not submitted: [`UseTracking::cancel`].
    ///
    /// # Errors
    ///
    /// As [`finish_uses`](Self::finish_uses).
    fn cancel_uses(&self, mut tokens: UseTokens) -> ResourceResult<()> {
        match self.use_tracking() {
            Some(tracking) => tracking.cancel(&mut tokens),
            None => refuse(&tokens),
        }
    }

    /// Records work that was already submitted to `stream`, and that reads and writes the block.
    ///
    /// The caller has ordered the work after the earlier uses of the block. The stream waits for
    /// them here all the same, after the work, so that a wait for the recorded use is a wait for
    /// every earlier use.
    ///
    /// # Errors
    ///
    /// As [`prepare_uses`](Self::prepare_uses) and [`finish_uses`](Self::finish_uses).
    fn record_block_use(&self, block: &DeviceBlock, stream: StreamId) -> ResourceResult<()> {
        self.finish_uses(self.prepare_block_use(block.id(), stream, Access::ReadWrite)?)
    }
}

impl<R: DeviceMemoryResource + ?Sized> UseTrackingExt for R {}

/// Refuses tokens of windows, which a resource that does not track uses has not opened.
fn refuse(tokens: &UseTokens) -> ResourceResult<()> {
    if tokens.is_empty() { Ok(()) } else { Err(ResourceError::not_tracked(tokens.stream())) }
}
