//! Parts of a block: narrowing it, and restoring the whole.

use std::ops::Range;

use crate::size::BLOCK_ALIGNMENT;
use crate::{BlockId, BlockParts, DeviceBlock, DeviceOps, ResourceResult, StreamId};

/// A block that was narrowed, until [`restore`](Self::restore) consumes its part.
///
/// Kept by an adaptor that returns a part of a larger block from `allocate`. Its memory stays
/// allocated: resources refuse the part, so only the restored block can be deallocated or grown.
/// Until then the whole has read-only methods:
///
/// ```compile_fail,E0599
/// # use dmr_core::{DeviceMemoryResource, WholeBlock};
/// fn free_under_the_part(whole: WholeBlock, resource: &dyn DeviceMemoryResource) {
///     let _ = resource.deallocate(whole.get());
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use dmr_core::{DeviceMemoryResource, WholeBlock};
/// fn grow_under_the_part(mut whole: WholeBlock, resource: &dyn DeviceMemoryResource) {
///     let _ = resource.try_grow(&mut whole, 1 << 20);
/// }
/// ```
///
/// Dropping it leaks the memory.
#[derive(Debug)]
#[must_use = "dropping it leaks the memory: get the block back with `restore`"]
pub struct WholeBlock {
    block: DeviceBlock,
    /// The addresses of the part.
    part: Range<u64>,
}

/// The binary logarithm of a part's largest alignment: 2 MiB, a large page.
const MAX_ALIGNMENT_LOG2: u32 = 21;

impl DeviceBlock {
    /// Splits the block into its part of `bytes` bytes at `offset`, which can be used like a block,
    /// and the whole, which consumes the part later.
    ///
    /// The part has the identity of the whole (generation, home stream, tag) and one more
    /// [`part_depth`](Self::part_depth). A part can be narrowed again. `deallocate` and `try_grow`
    /// refuse it, except those of the adaptor that returned it from `allocate`:
    /// [`restore`](WholeBlock::restore) the whole first.
    ///
    /// # Errors
    ///
    /// The block, unchanged, if the part is empty, not inside of its [`bytes`](Self::bytes), not
    /// aligned to 256 bytes, or would be narrowed for the 256th time.
    pub fn narrow(self, offset: usize, bytes: usize) -> Result<(Self, WholeBlock), Self> {
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes());
        let ptr = self.ptr().wrapping_add(offset as u64);
        let alignment = 1 << ptr.trailing_zeros().min(MAX_ALIGNMENT_LOG2);
        let Some(part_depth) = self.part_depth().checked_add(1) else { return Err(self) };
        if bytes == 0 || !is_inside || alignment < BLOCK_ALIGNMENT {
            return Err(self);
        }
        let reserved_bytes = bytes;
        let part = BlockParts { ptr, bytes, reserved_bytes, alignment, part_depth, ..self.parts() };
        let range = ptr..ptr + bytes as u64;
        // SAFETY: the memory is inside of that of `self`, which stays in the `WholeBlock` until
        // `restore` has consumed the part, so no other block that a caller can use covers it. The
        // resource refuses the part's depth and so does not free the memory before.
        #[allow(unsafe_code, reason = "a claim about a part of what was claimed before")]
        Ok((unsafe { Self::from_parts(part) }, WholeBlock { block: self, part: range }))
    }
}

impl WholeBlock {
    /// Returns the identity of the whole block.
    #[must_use]
    pub const fn id(&self) -> BlockId {
        self.block.id()
    }

    /// Returns the device address of the whole block.
    #[must_use]
    pub const fn ptr(&self) -> u64 {
        self.block.ptr()
    }

    /// Returns the requested bytes of the whole block.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.block.bytes()
    }

    /// Returns the reserved bytes of the whole block.
    #[must_use]
    pub const fn reserved_bytes(&self) -> usize {
        self.block.reserved_bytes()
    }

    /// Returns whether `block` is the part that this whole was narrowed to.
    #[must_use]
    pub fn has_part(&self, block: &DeviceBlock) -> bool {
        let range = block.ptr()..block.ptr().wrapping_add(block.bytes() as u64);
        block.generation() == self.block.generation()
            && Some(block.part_depth()) == self.block.part_depth().checked_add(1)
            && range == self.part
    }

    /// Consumes the part and returns the whole block.
    ///
    /// # Errors
    ///
    /// Both, unchanged, if `part` is not [the part](Self::has_part) of this whole, even if it was
    /// narrowed further.
    #[allow(clippy::result_large_err, reason = "both are returned, and neither is on the heap")]
    pub fn restore(self, part: DeviceBlock) -> Result<DeviceBlock, (Self, DeviceBlock)> {
        if !self.has_part(&part) {
            return Err((self, part));
        }
        let _ = part.into_parts();
        Ok(self.block)
    }

    /// Makes the call [`library_stream`](DeviceOps::library_stream) of `ops` for the whole block.
    ///
    /// # Errors
    ///
    /// As that call.
    pub fn library_stream(&self, ops: &dyn DeviceOps) -> ResourceResult<StreamId> {
        ops.library_stream(&self.block)
    }

    /// Makes the call [`check_pattern`](DeviceOps::check_pattern) of `ops` for `range`, in bytes
    /// from the start of the whole block.
    ///
    /// # Errors
    ///
    /// As that call.
    pub fn check_pattern(
        &self,
        ops: &dyn DeviceOps,
        range: Range<usize>,
        pattern: u32,
        stream: StreamId,
        key: u64,
    ) -> ResourceResult<()> {
        ops.check_pattern(&self.block, range, pattern, stream, key)
    }
}

#[cfg(test)]
mod tests {
    use crate::upstream::{PassedBlock, check_allocated};
    use crate::{
        AllocTag, BlockSlot, BlockState, DeallocateError, Generation, ResourceError, StreamPoolId,
    };

    use super::*;

    fn block(ptr: u64, bytes: usize) -> DeviceBlock {
        let pool = StreamPoolId::next().unwrap();
        let parts = BlockParts {
            ptr,
            bytes,
            reserved_bytes: bytes,
            alignment: 256,
            device_ordinal: 0,
            alloc_stream: StreamId::from_parts(pool, 0, 1).unwrap(),
            tag: AllocTag::UNTAGGED,
            generation: Generation::next(),
            slot: BlockSlot::NONE,
            state: BlockState::Live,
            part_depth: 0,
        };
        // SAFETY: the memory is never used.
        #[allow(unsafe_code, reason = "a block of memory that does not exist")]
        unsafe {
            DeviceBlock::from_parts(parts)
        }
    }

    fn remade(block: DeviceBlock) -> DeviceBlock {
        // SAFETY: the same block, taken apart.
        #[allow(unsafe_code, reason = "a block of memory that does not exist")]
        unsafe {
            DeviceBlock::from_parts(block.into_parts())
        }
    }

    #[test]
    fn a_part_has_the_identity_of_the_whole_and_restores_it() {
        let whole = block(0x1000, 2048);
        let id = whole.id();
        let generation = whole.generation();
        let (part, whole) = whole.narrow(512, 1001).unwrap();
        assert_eq!((part.ptr(), part.bytes(), part.generation()), (0x1200, 1001, generation));
        assert_eq!((part.alignment(), part.part_depth()), (512, 1));
        assert_eq!((whole.id(), whole.ptr(), whole.bytes()), (id, 0x1000, 2048));
        let whole = whole.restore(part).unwrap();
        assert_eq!((whole.id(), whole.part_depth()), (id, 0));
    }

    /// A part at the start of the block has its address and its id.
    #[test]
    fn a_refusal_contains_the_passed_block_or_is_an_error_that_names_both() {
        let refusal = |block| DeallocateError::new(ResourceError::zero_size(), block);
        let passed = block(0x1000, 2048);
        let identity = PassedBlock::of(&passed);
        let refused = identity.check("deallocate", refusal(passed)).unwrap();
        assert_eq!(refused.error, ResourceError::zero_size());
        let generation = refused.block.generation();
        let (part, whole) = refused.block.narrow(0, 2048).unwrap();
        let other = identity.check("deallocate", refusal(part)).unwrap_err();
        assert!(matches!(other.error, ResourceError::WrongMemory { .. }), "{}", other.error);
        let restored = whole.restore(other.block).unwrap();
        assert!(identity.check("deallocate", refusal(restored)).is_ok());
        let other = identity.check("deallocate", refusal(block(0x1000, 2048))).unwrap_err();
        let message = other.error.to_string();
        for expected in [generation, other.block.generation()] {
            assert!(message.contains(&format!("block {expected} (2 KiB, ")), "{message}");
        }
    }

    #[test]
    fn an_allocated_block_has_the_size_and_the_home_stream_that_were_asked_for() {
        let block = block(0x1000, 2048);
        let home = block.alloc_stream();
        let other = StreamId::from_parts(home.pool().unwrap(), 1, 1).unwrap();
        assert_eq!(check_allocated(&block, 2048, home), Ok(()));
        for (bytes, home) in [(2047, home), (2049, home), (2048, other)] {
            let refused = check_allocated(&block, bytes, home).unwrap_err();
            assert!(matches!(refused, ResourceError::WrongMemory { .. }), "{refused}");
        }
    }

    #[test]
    fn a_part_is_inside_and_aligned() {
        for (offset, bytes) in [(0, 0), (0, 2049), (256, 1793), (usize::MAX, 2), (128, 1)] {
            assert!(block(0x1000, 2048).narrow(offset, bytes).is_err(), "{offset} {bytes}");
        }
    }

    #[test]
    fn a_whole_is_restored_by_its_own_part_only() {
        let (part, whole) = block(0x1000, 2048).narrow(256, 512).unwrap();
        let (whole, stranger) = whole.restore(block(part.ptr(), 512)).unwrap_err();
        // A part of the part, be it as large, is another part.
        let (inner, outer) = part.narrow(0, 512).unwrap();
        let (whole, inner) = whole.restore(inner).unwrap_err();
        let part = outer.restore(inner).unwrap();
        let (inner, outer) = part.narrow(256, 256).unwrap();
        let (whole, inner) = whole.restore(inner).unwrap_err();
        let part = outer.restore(inner).unwrap();
        // One that was made larger in place is not the range that the whole was narrowed to.
        let mut grown = part;
        // SAFETY: the memory is never used.
        #[allow(unsafe_code, reason = "what a resource must not do with a part")]
        unsafe {
            grown.set_sizes(1024, 1024);
        }
        let (whole, mut part) = whole.restore(grown).unwrap_err();
        // SAFETY: as above.
        #[allow(unsafe_code, reason = "the part as it was")]
        unsafe {
            part.set_sizes(512, 512);
        }
        assert!(whole.restore(remade(part)).is_ok(), "a block that is made again keeps its depth");
        drop(stranger);
    }

    #[test]
    fn a_block_of_another_depth_is_a_part_to_its_resource() {
        let whole = block(0x1000, 2048);
        assert_eq!(whole.require_part_depth(0), Ok(()));
        let (part, _whole) = whole.narrow(0, 2048).unwrap();
        let refused = part.require_part_depth(0).unwrap_err();
        assert!(matches!(refused, ResourceError::PartOfBlock { .. }), "{refused}");
        assert_eq!(part.require_part_depth(1), Ok(()));
        let (part, _part) = part.narrow(0, 256).unwrap();
        assert!(part.require_part_depth(1).is_err() && part.require_part_depth(0).is_err());
    }

    #[test]
    fn a_block_is_narrowed_255_times_at_most() {
        let mut block = block(0x1000, 256);
        let mut wholes = Vec::new();
        for depth in 1..=u8::MAX {
            let (part, whole) = block.narrow(0, 256).unwrap();
            assert_eq!(part.part_depth(), depth);
            wholes.push(whole);
            block = part;
        }
        block = block.narrow(0, 256).unwrap_err();
        while let Some(whole) = wholes.pop() {
            block = whole.restore(block).unwrap();
        }
        assert_eq!(block.part_depth(), 0);
    }
}
