//! The blocks and bytes of an arena.

/// Blocks and bytes, as requested, since the pool was made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Blocks that were allocated.
    pub(crate) blocks: u64,
    /// Bytes that were allocated.
    pub(crate) allocated: u64,
    /// Bytes of blocks that were deallocated.
    pub(crate) returned: u64,
    /// Bytes of blocks that were deallocated and have no open window.
    pub(crate) freed: u64,
}

impl Counts {
    /// Returns the bytes that are not deallocated.
    #[inline(always)]
    pub(crate) fn live(&self) -> u64 {
        self.allocated - self.returned
    }

    /// Counts an allocation.
    #[inline(always)]
    pub(crate) fn add_block(&mut self, bytes: u64) {
        self.blocks += 1;
        self.allocated += bytes;
    }

    /// Counts bytes by which a block has grown.
    pub(crate) fn add_bytes(&mut self, bytes: u64) {
        self.allocated += bytes;
    }
}
