//! What every resource that tracks uses does with the table, in the words of the trait: the device
//! is looked at first, and one use is a launch of one.

use dmr_core::{
    Access, BlockId, BlockUse, ResourceError, ResourceResult, StreamId, UseToken, UseTokens,
};

use super::UseTable;

impl UseTable<'_> {
    /// `record_block_use`: [`record`](Self::record), on a device that is there.
    ///
    /// # Errors
    ///
    /// As [`record`](Self::record); [`DeviceLost`](ResourceError::DeviceLost) and
    /// [`ForkedProcess`](ResourceError::ForkedProcess).
    pub fn record_block_use(&self, block: BlockId, stream: StreamId) -> ResourceResult<()> {
        self.pool.device().check()?;
        self.record(block, stream)
    }

    /// `prepare_block_use`: a launch that uses one block.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare).
    pub fn prepare_block_use(
        &self,
        block: BlockId,
        stream: StreamId,
        access: Access,
    ) -> ResourceResult<UseToken> {
        let tokens = self.prepare(&[BlockUse::new(block, access)], stream)?;
        let not_one = ResourceError::use_after_free(block.generation());
        tokens.into_iter().next().ok_or(not_one)
    }

    /// `finish_uses`: [`finish`](Self::finish), or, on a device that is lost, only an end to the
    /// windows.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish); [`DeviceLost`](ResourceError::DeviceLost) and
    /// [`ForkedProcess`](ResourceError::ForkedProcess).
    #[inline]
    pub fn finish_uses(&self, tokens: UseTokens) -> ResourceResult<()> {
        if self.pool.device().is_usable() {
            return self.finish_borrowed(&tokens);
        }
        self.finish_without_device(tokens)
    }

    #[cold]
    pub(super) fn finish_without_device(&self, tokens: UseTokens) -> ResourceResult<()> {
        match self.pool.device().check() {
            _ if tokens.is_empty() => Ok(()),
            Err(gone @ ResourceError::ForkedProcess { .. }) => Err(gone),
            // The work is gone with the context: nothing has to be ordered after it.
            gone => self.cancel(tokens).and(gone),
        }
    }
}
