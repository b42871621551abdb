//! Checks of the blocks that an upstream resource returns, for resources that rely on what a block
//! is.
//!
//! [`DeviceMemoryResource`](crate::DeviceMemoryResource) is a safe trait: an implementation may
//! return any block that it has. A resource that keeps books of its own for a block, or makes it
//! again with [`from_parts`](DeviceBlock::from_parts), compares the block with the one that it
//! expects.

use std::fmt;

use crate::block::write_block;
use crate::{
    AllocTag, BlockId, DeallocateError, DeviceBlock, ResourceError, ResourceResult, StreamId,
};

/// The identity of a block that is passed to `deallocate` or `give_away` of an upstream resource.
///
/// ```
/// use dmr_core::upstream::PassedBlock;
/// use dmr_core::{BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource};
///
/// fn deallocate(
///     upstream: &dyn DeviceMemoryResource,
///     block: DeviceBlock,
/// ) -> Result<BlockState, Box<DeallocateError>> {
///     let passed = PassedBlock::of(&block);
///     upstream.deallocate(block).map_err(|refused| match passed.check("deallocate", refused) {
///         Ok(refused) => refused, // the block, to be put back
///         Err(other) => other,    // another block: upstream has kept the one that it was given
///     })
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PassedBlock {
    id: BlockId,
    bytes: usize,
    tag: AllocTag,
    part_depth: u8,
}

impl PassedBlock {
    /// Returns the identity of a block that is about to be passed on.
    #[must_use]
    #[inline]
    pub const fn of(block: &DeviceBlock) -> Self {
        let id = block.id();
        let bytes = block.bytes();
        Self { id, bytes, tag: block.tag(), part_depth: block.part_depth() }
    }

    /// Returns the refusal of `call`, which the block was passed to, if it contains the passed
    /// block.
    ///
    /// # Errors
    ///
    /// Upstream has kept the passed block, whose memory may be in use there, and returned another
    /// one. That is in the error, a [`WrongMemory`](ResourceError::WrongMemory): it belongs to the
    /// caller.
    pub fn check(
        self,
        call: &'static str,
        mut refused: Box<DeallocateError>,
    ) -> Result<Box<DeallocateError>, Box<DeallocateError>> {
        let block = &refused.block;
        if block.id() == self.id && block.part_depth() == self.part_depth {
            return Ok(refused);
        }
        refused.error = ResourceError::wrong_memory(call, block, self);
        Err(refused)
    }
}

/// `block #7 (4 MiB, tag "probe-keys", stream 2)`, as a block.
impl fmt::Display for PassedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = self.id.generation();
        let home = self.id.alloc_stream();
        write_block(f, format_args!("block {generation}"), self.bytes, self.tag, home)
    }
}

/// Returns an error unless this is the block that `allocate(bytes, home, ..)` of a resource on the
/// stream pool of `home` returns: of this size and home stream. A stream names its pool, and so the
/// device. The alignment needs no check: each block is aligned to
/// [`BLOCK_ALIGNMENT`](crate::size::BLOCK_ALIGNMENT).
///
/// # Errors
///
/// [`WrongMemory`](ResourceError::WrongMemory).
#[inline]
pub fn check_allocated(block: &DeviceBlock, bytes: usize, home: StreamId) -> ResourceResult<()> {
    if block.bytes() == bytes && block.alloc_stream() == home {
        return Ok(());
    }
    let expected = Expected { bytes, home };
    Err(ResourceError::wrong_memory("allocate", block, expected))
}

struct Expected {
    bytes: usize,
    home: StreamId,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, home } = *self;
        write_block(f, format_args!("a block"), bytes, AllocTag::UNTAGGED, home)
    }
}
