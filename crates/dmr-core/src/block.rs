//! One allocation, and its identity.

use std::fmt;

use crate::size::BLOCK_ALIGNMENT;
use crate::{AllocTag, Generation, StreamId};

/// One allocation of device memory.
///
/// Linear: neither `Clone` nor `Copy`. It goes back through
/// [`deallocate`](crate::DeviceMemoryResource::deallocate) of the resource that made it. Dropping
/// it instead leaks the memory, visibly in [`usage`](crate::DeviceMemoryResource::usage).
#[must_use = "dropping a block leaks its memory: give it back with `deallocate`"]
pub struct DeviceBlock {
    // What `BlockParts` has, in a cache line: blocks are moved.
    ptr: u64,
    bytes: usize,
    reserved_bytes: usize,
    tag: AllocTag,
    alloc_stream: StreamId,
    generation: Generation,
    slot: BlockSlot,
    device_ordinal: u16,
    /// Alignments are powers of two.
    alignment_log2: u8,
    state: BlockState,
}

const _: () = assert!(size_of::<DeviceBlock>() <= 64);

/// What a resource knows of a block when it makes one: the argument of
/// [`DeviceBlock::from_parts`].
#[derive(Clone, Copy, Debug)]
pub struct BlockParts {
    /// Device address (a `CUdeviceptr`).
    pub ptr: u64,
    /// Bytes asked for.
    pub bytes: usize,
    /// Bytes set aside for it, at least `bytes`.
    pub reserved_bytes: usize,
    /// Alignment of `ptr` in bytes: a power of two, at least 256.
    pub alignment: usize,
    /// CUDA device ordinal. CUDA numbers devices from 0: none has a number of more than 16 bits.
    pub device_ordinal: usize,
    /// The stream named at `allocate`, resolved: never [`StreamId::DEFAULT`].
    pub alloc_stream: StreamId,
    /// Who asked.
    pub tag: AllocTag,
    /// Which allocation this is.
    pub generation: Generation,
    /// Where the resource finds it again; [`BlockSlot::NONE`] if it keeps no table.
    pub slot: BlockSlot,
    /// What state it is in.
    pub state: BlockState,
}

impl DeviceBlock {
    /// Makes a block. Only resources do this.
    ///
    /// # Safety
    ///
    /// - `parts.ptr` is the start of `parts.reserved_bytes` bytes of device memory of
    ///   `parts.device_ordinal`, aligned to `parts.alignment`, that no other block covers.
    /// - That memory stays valid until the block is given to `deallocate` of the resource that
    ///   calls this.
    /// - `parts.generation` is on no other block, except where an adaptor takes a block apart
    ///   ([`into_parts`](Self::into_parts)) and makes it again.
    #[allow(unsafe_code, reason = "the one place where a claim about device memory is made")]
    #[inline]
    pub const unsafe fn from_parts(parts: BlockParts) -> Self {
        Self {
            ptr: parts.ptr,
            bytes: parts.bytes,
            reserved_bytes: parts.reserved_bytes,
            tag: parts.tag,
            alloc_stream: parts.alloc_stream,
            generation: parts.generation,
            slot: parts.slot,
            device_ordinal: parts.device_ordinal as u16,
            alignment_log2: parts.alignment.trailing_zeros() as u8,
            state: parts.state,
        }
    }

    /// Makes the block larger or smaller where it is. Only the resource that made it does this.
    ///
    /// # Safety
    ///
    /// `reserved_bytes` bytes from the block's address on are device memory that no other block
    /// covers, and stay valid as [`from_parts`](Self::from_parts) demands; `bytes` is not more.
    #[allow(unsafe_code, reason = "a claim about device memory, as where the block is made")]
    pub const unsafe fn set_sizes(&mut self, bytes: usize, reserved_bytes: usize) {
        (self.bytes, self.reserved_bytes) = (bytes, reserved_bytes);
    }

    /// Takes the block apart, for the resource that made it.
    ///
    /// The caller now answers for the memory, as it does after `mem::forget`.
    #[must_use]
    #[inline]
    pub const fn into_parts(self) -> BlockParts {
        self.parts()
    }

    const fn parts(&self) -> BlockParts {
        BlockParts {
            ptr: self.ptr,
            bytes: self.bytes,
            reserved_bytes: self.reserved_bytes,
            alignment: self.alignment(),
            device_ordinal: self.device_ordinal(),
            alloc_stream: self.alloc_stream,
            tag: self.tag,
            generation: self.generation,
            slot: self.slot,
            state: self.state,
        }
    }

    /// Device address (a `CUdeviceptr`).
    #[must_use]
    #[inline]
    pub const fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Bytes asked for.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes set aside for it, at least [`bytes`](Self::bytes). Only `bytes` of them may be used.
    #[must_use]
    #[inline]
    pub const fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// Alignment of the address in bytes, at least 256.
    #[must_use]
    #[inline]
    pub const fn alignment(&self) -> usize {
        1 << self.alignment_log2
    }

    /// CUDA device ordinal.
    #[must_use]
    #[inline]
    pub const fn device_ordinal(&self) -> usize {
        self.device_ordinal as usize
    }

    /// The home stream: the one named at `allocate`.
    #[must_use]
    #[inline]
    pub const fn alloc_stream(&self) -> StreamId {
        self.alloc_stream
    }

    /// Who asked.
    #[must_use]
    #[inline]
    pub const fn tag(&self) -> AllocTag {
        self.tag
    }

    /// Which allocation this is.
    #[must_use]
    #[inline]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// What state the block is in. The holder of a block sees [`BlockState::Live`].
    #[must_use]
    #[inline]
    pub const fn state(&self) -> BlockState {
        self.state
    }

    /// A `Copy` snapshot of the block's identity, which holds no borrow.
    #[must_use]
    #[inline]
    pub const fn id(&self) -> BlockId {
        BlockId {
            ptr: self.ptr,
            generation: self.generation,
            alloc_stream: self.alloc_stream,
            device_ordinal: self.device_ordinal,
            slot: self.slot,
        }
    }
}

/// A whole block, kept by an adaptor that hands out a part of it.
///
/// Linear, as the block is: dropping it leaks the memory.
#[derive(Debug)]
#[must_use = "dropping it leaks the memory: make the block whole again with `restore`"]
pub struct WholeBlock(DeviceBlock);

impl DeviceBlock {
    /// The part of the block that starts at `offset` and has `bytes` bytes, as a block of its own
    /// with the same identity; and the whole, for whoever gives the part back.
    ///
    /// # Errors
    ///
    /// The block, if the part is empty, not inside, or not aligned to 256 bytes.
    pub fn narrow(self, offset: usize, bytes: usize) -> Result<(Self, WholeBlock), Self> {
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes());
        let ptr = self.ptr().wrapping_add(offset as u64);
        let aligned_to = 1 << ptr.trailing_zeros().min(MOST_ALIGNED);
        if bytes == 0 || !is_inside || aligned_to < BLOCK_ALIGNMENT {
            return Err(self);
        }
        let part =
            BlockParts { ptr, bytes, reserved_bytes: bytes, alignment: aligned_to, ..self.parts() };
        // SAFETY: a part of memory that the whole answers for, which nobody is handed out before
        // it is whole again; the generation is on no other block that can be given back.
        #[allow(unsafe_code, reason = "a claim about a part of what was claimed before")]
        Ok((unsafe { Self::from_parts(part) }, WholeBlock(self)))
    }
}

impl WholeBlock {
    /// The whole block, to look at: its part is handed out.
    pub const fn get(&self) -> &DeviceBlock {
        &self.0
    }

    /// The whole block, in exchange for its part.
    ///
    /// # Errors
    ///
    /// Both, if the block is not a part of this whole.
    #[allow(clippy::result_large_err, reason = "both are given back, and neither is on the heap")]
    pub fn restore(self, part: DeviceBlock) -> Result<DeviceBlock, (Self, DeviceBlock)> {
        let whole = &self.0;
        let start = part.ptr().checked_sub(whole.ptr());
        let is_inside = start.is_some_and(|start| start < whole.bytes() as u64);
        if part.generation() != whole.generation() || !is_inside {
            return Err((self, part));
        }
        let _ = part.into_parts();
        Ok(self.0)
    }
}

/// Addresses are often aligned better than anybody can ask for: 2 MiB, a large page.
const MOST_ALIGNED: u32 = 21;

impl fmt::Debug for DeviceBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = self.parts();
        f.debug_struct("DeviceBlock")
            .field("ptr", &format_args!("{:#x}", p.ptr))
            .field("bytes", &p.bytes)
            .field("reserved_bytes", &p.reserved_bytes)
            .field("device_ordinal", &p.device_ordinal)
            .field("alloc_stream", &p.alloc_stream)
            .field("tag", &p.tag)
            .field("generation", &p.generation)
            .field("state", &p.state)
            .finish_non_exhaustive()
    }
}

/// `block #7 (4 MiB, tag "probe-keys", stream 2)`: how messages name a block.
impl fmt::Display for DeviceBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = self.parts();
        let size = crate::size::human_bytes(p.bytes as u64);
        write!(f, "block {} ({size}", p.generation)?;
        if !p.tag.is_untagged() {
            write!(f, ", tag {:?}", p.tag.name())?;
        }
        write!(f, ", {})", p.alloc_stream)
    }
}

/// The identity of a block: a `Copy` snapshot that holds no borrow.
///
/// A stale one is always recognised, because a generation is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId {
    ptr: u64,
    generation: Generation,
    alloc_stream: StreamId,
    slot: BlockSlot,
    device_ordinal: u16,
}

impl BlockId {
    /// An id from its fields, for whoever packs them closer.
    #[inline]
    pub(crate) const fn from_fields(
        (ptr, generation, alloc_stream): (u64, Generation, StreamId),
        slot: BlockSlot,
        device_ordinal: u16,
    ) -> Self {
        Self { ptr, generation, alloc_stream, slot, device_ordinal }
    }

    /// Device address (a `CUdeviceptr`).
    #[must_use]
    #[inline]
    pub const fn ptr(self) -> u64 {
        self.ptr
    }

    /// Which allocation it was.
    #[must_use]
    #[inline]
    pub const fn generation(self) -> Generation {
        self.generation
    }

    /// The home stream: the one named at `allocate`.
    #[must_use]
    #[inline]
    pub const fn alloc_stream(self) -> StreamId {
        self.alloc_stream
    }

    /// CUDA device ordinal.
    #[must_use]
    #[inline]
    pub const fn device_ordinal(self) -> usize {
        self.device_ordinal as usize
    }

    /// Where the resource finds it again.
    #[must_use]
    #[inline]
    pub const fn slot(self) -> BlockSlot {
        self.slot
    }
}

/// An index into a resource's table of blocks. Means nothing to anybody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSlot(u32);

impl BlockSlot {
    /// The resource keeps no table.
    pub const NONE: Self = Self(u32::MAX);

    /// A slot with this index (`u32::MAX` is [`BlockSlot::NONE`]).
    #[must_use]
    #[inline]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// The index, unless this is [`BlockSlot::NONE`].
    #[must_use]
    #[inline]
    pub const fn index(self) -> Option<u32> {
        if self.0 == u32::MAX { None } else { Some(self.0) }
    }
}

/// Where a block is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockState {
    /// Handed out.
    Live,
    /// Given back, but device work may still need it.
    Retired,
    /// Back in the driver or in the pool.
    Freed,
    /// Held by the debug guard, to catch writes after free.
    Quarantined,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StreamPoolId;

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
        };
        // SAFETY: nobody uses the memory.
        #[allow(unsafe_code, reason = "a block of memory that does not exist")]
        unsafe {
            DeviceBlock::from_parts(parts)
        }
    }

    #[test]
    fn a_part_has_the_identity_of_the_whole_and_makes_it_whole_again() {
        let whole = block(0x1000, 2048);
        let (id, generation) = (whole.id(), whole.generation());
        let (part, whole) = whole.narrow(512, 1001).unwrap();
        assert_eq!((part.ptr(), part.bytes(), part.generation()), (0x1200, 1001, generation));
        assert_eq!(part.alignment(), 512);
        assert_eq!(whole.restore(part).unwrap().id(), id);
    }

    #[test]
    fn a_part_is_inside_and_aligned_and_a_stranger_is_no_part() {
        for (offset, bytes) in [(0, 0), (0, 2049), (256, 1793), (usize::MAX, 2), (128, 1)] {
            assert!(block(0x1000, 2048).narrow(offset, bytes).is_err(), "{offset} {bytes}");
        }
        let (part, whole) = block(0x1000, 2048).narrow(256, 256).unwrap();
        let stranger = block(part.ptr(), 256);
        let (whole, stranger) = whole.restore(stranger).unwrap_err();
        assert!(whole.restore(part).is_ok());
        drop(stranger);
    }
}
