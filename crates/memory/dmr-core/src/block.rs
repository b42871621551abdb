//! One allocation, and its identity.

use std::fmt;

use crate::human::human_bytes;
use crate::{AllocTag, Generation, ResourceError, ResourceResult, StreamId};

/// One allocation of device memory, or a [part](DeviceBlock::narrow) of one.
///
/// Linear: neither `Clone` nor `Copy`. [`deallocate`](crate::DeviceMemoryResource::deallocate) of
/// the resource that allocated it consumes it. Dropping it instead leaks the memory, which
/// [`usage`](crate::DeviceMemoryResource::usage) goes on counting as live.
#[must_use = "dropping a block leaks its memory: pass it to `deallocate`"]
pub struct DeviceBlock {
    // The fields of `BlockParts` in one cache line: blocks are moved.
    ptr: u64,
    bytes: usize,
    reserved_bytes: usize,
    tag: AllocTag,
    alloc_stream: StreamId,
    generation: Generation,
    slot: BlockSlot,
    device_ordinal: u16,
    packed: AlignmentAndState,
    part_depth: u8,
}

const _: () = assert!(size_of::<DeviceBlock>() <= 64);

/// The properties of a block that a resource makes: the argument of [`DeviceBlock::from_parts`].
#[derive(Clone, Copy, Debug)]
pub struct BlockParts {
    /// Device address (a `CUdeviceptr`).
    pub ptr: u64,
    /// Requested bytes.
    pub bytes: usize,
    /// Bytes reserved for the block, at least `bytes`.
    pub reserved_bytes: usize,
    /// Alignment of `ptr` in bytes: a power of two, at least 256 unless the memory is another
    /// owner's, and was adopted.
    pub alignment: usize,
    /// CUDA device ordinal, below 2^16.
    pub device_ordinal: usize,
    /// The stream named at `allocate`, resolved: never [`StreamId::DEFAULT`].
    pub alloc_stream: StreamId,
    /// The tag of the allocation.
    pub tag: AllocTag,
    /// The number of the allocation, unique in the process.
    pub generation: Generation,
    /// An index into the resource's table of blocks; [`BlockSlot::NONE`] if it keeps none.
    pub slot: BlockSlot,
    /// The state of the block.
    pub state: BlockState,
    /// The number of times that the block was narrowed: 0, unless it is a part of another block.
    pub part_depth: u8,
}

impl DeviceBlock {
    /// Makes a block. Only resources do this.
    ///
    /// # Safety
    ///
    /// - `parts.ptr` is the start of `parts.reserved_bytes` bytes of device memory of
    ///   `parts.device_ordinal`, aligned to `parts.alignment`, that no other block covers.
    /// - That memory stays valid until this block, or the whole that it is restored to, is passed
    ///   to `deallocate` of the resource that calls this. That resource refuses blocks of this
    ///   generation with another part depth.
    /// - `parts.generation` is on no other block, and `parts.part_depth` is 0, except where a block
    ///   was taken apart with [`into_parts`](Self::into_parts) and is made again.
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
            packed: AlignmentAndState::new(parts.alignment, parts.state),
            part_depth: parts.part_depth,
        }
    }

    /// Changes the size of the block in place. Only the resource that allocated it does this.
    ///
    /// # Safety
    ///
    /// - `reserved_bytes` bytes from the block's address on are device memory that no other block
    ///   covers, and stay valid as [`from_parts`](Self::from_parts) demands.
    /// - `bytes` is at most `reserved_bytes`.
    /// - The block has the part depth with which the caller returned it from `allocate`. A part
    ///   that was narrowed later ends before bytes of its whole, and so covers memory of another
    ///   block if it becomes larger.
    #[allow(unsafe_code, reason = "a claim about device memory, as where the block is made")]
    pub const unsafe fn set_sizes(&mut self, bytes: usize, reserved_bytes: usize) {
        self.bytes = bytes;
        self.reserved_bytes = reserved_bytes;
    }

    /// Returns the fields of the block, for the resource that allocated it.
    ///
    /// Afterwards the caller is responsible for the memory, as after `mem::forget`.
    #[must_use]
    #[inline]
    pub const fn into_parts(self) -> BlockParts {
        self.parts()
    }

    /// Returns an error unless the block was narrowed exactly `depth` times.
    ///
    /// A resource calls this in `deallocate` and `try_grow` with the part depth of the block that
    /// it returned from `allocate`: 0, unless that was a part itself. Then only that very block
    /// passes, because a block and its parts never have the same depth.
    ///
    /// # Errors
    ///
    /// [`PartOfBlock`](ResourceError::PartOfBlock).
    #[inline]
    pub const fn require_part_depth(&self, depth: u8) -> ResourceResult<()> {
        if self.part_depth == depth { Ok(()) } else { Err(ResourceError::part_of_block(self)) }
    }

    /// Returns all properties of the block.
    #[must_use]
    #[inline]
    pub const fn parts(&self) -> BlockParts {
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
            state: self.state(),
            part_depth: self.part_depth,
        }
    }

    /// Device address (a `CUdeviceptr`).
    #[must_use]
    #[inline]
    pub const fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Requested bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes reserved for the block, at least [`bytes`](Self::bytes). Only `bytes` of them may be
    /// used.
    #[must_use]
    #[inline]
    pub const fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// Alignment of the address in bytes: at least 256, unless the memory is another owner's, and
    /// was adopted.
    #[must_use]
    #[inline]
    pub const fn alignment(&self) -> usize {
        self.packed.alignment()
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

    /// The tag of the allocation.
    #[must_use]
    #[inline]
    pub const fn tag(&self) -> AllocTag {
        self.tag
    }

    /// The number of the allocation, unique in the process. A part has that of its whole.
    #[must_use]
    #[inline]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// The state of the block. The holder of a block sees [`BlockState::Live`].
    #[must_use]
    #[inline]
    pub const fn state(&self) -> BlockState {
        self.packed.state()
    }

    /// Returns the number of times that the block was [narrowed](Self::narrow). 0 for a block that
    /// is not a part; an adaptor that returns parts from `allocate` returns blocks of another
    /// depth.
    #[must_use]
    #[inline]
    pub const fn part_depth(&self) -> u8 {
        self.part_depth
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

/// The binary logarithm of an alignment, and above it two bits for the state.
#[derive(Clone, Copy)]
struct AlignmentAndState(u8);

impl AlignmentAndState {
    /// 2^63 is the largest power of two in a `usize`.
    const ALIGNMENT_BITS: u32 = 6;

    const fn new(alignment: usize, state: BlockState) -> Self {
        let state = match state {
            BlockState::Live => 0,
            BlockState::Retired => 1,
            BlockState::Freed => 2,
            BlockState::Quarantined => 3,
        };
        Self(alignment.trailing_zeros() as u8 | state << Self::ALIGNMENT_BITS)
    }

    const fn alignment(self) -> usize {
        1 << (self.0 & ((1 << Self::ALIGNMENT_BITS) - 1))
    }

    const fn state(self) -> BlockState {
        match self.0 >> Self::ALIGNMENT_BITS {
            0 => BlockState::Live,
            1 => BlockState::Retired,
            2 => BlockState::Freed,
            _ => BlockState::Quarantined,
        }
    }
}

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
            .field("part_depth", &p.part_depth)
            .finish_non_exhaustive()
    }
}

/// `block #7 (4 MiB, tag "probe-keys", stream 2)`: how messages name a block.
impl fmt::Display for DeviceBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = self.parts();
        let name = format_args!("block {}", p.generation);
        write_block(f, name, p.bytes, p.tag, p.alloc_stream)
    }
}

/// Writes how messages name a block.
pub(crate) fn write_block(
    f: &mut fmt::Formatter<'_>,
    name: fmt::Arguments<'_>,
    bytes: usize,
    tag: AllocTag,
    home: StreamId,
) -> fmt::Result {
    write!(f, "{name} ({}", human_bytes(bytes as u64))?;
    if !tag.is_untagged() {
        write!(f, ", tag {:?}", tag.name())?;
    }
    write!(f, ", {home})")
}

/// The identity of a block: a `Copy` snapshot that holds no borrow.
///
/// A stale id is always recognised, because a generation is never reused. The id of a part has the
/// generation of its whole, and so names the same allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId {
    ptr: u64,
    generation: Generation,
    alloc_stream: StreamId,
    slot: BlockSlot,
    device_ordinal: u16,
}

impl BlockId {
    /// Device address (a `CUdeviceptr`).
    #[must_use]
    #[inline]
    pub const fn ptr(self) -> u64 {
        self.ptr
    }

    /// The number of the allocation, unique in the process.
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

    /// The index into the resource's table of blocks.
    #[must_use]
    #[inline]
    pub const fn slot(self) -> BlockSlot {
        self.slot
    }
}

/// An index into the table of blocks of the resource that made the block. It has no meaning
/// elsewhere.
///
/// A slot can be marked as one [of host memory](Self::of_host_memory).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSlot(u32);

impl BlockSlot {
    /// No slot: the resource keeps no table.
    pub const NONE: Self = Self(Self::OF_HOST_MEMORY - 1);

    /// The bit of the mark.
    const OF_HOST_MEMORY: u32 = 1 << 31;

    /// Makes a slot with this index, below 2^31 - 1.
    #[must_use]
    #[inline]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// Returns the index, unless this is [`BlockSlot::NONE`].
    #[must_use]
    #[inline]
    pub const fn index(self) -> Option<u32> {
        let index = self.0 & !Self::OF_HOST_MEMORY;
        if index == Self::NONE.0 { None } else { Some(index) }
    }

    /// Returns this slot with the mark of a block of host memory. A
    /// [`HostMemoryResource`](crate::HostMemoryResource) marks the slots of its blocks.
    ///
    /// The use table orders the uses of a marked block itself, whatever the resource that a launch
    /// names claims to track.
    #[must_use]
    #[inline]
    pub const fn of_host_memory(self) -> Self {
        Self(self.0 | Self::OF_HOST_MEMORY)
    }

    /// Returns whether this is the slot of a block of host memory.
    #[must_use]
    #[inline]
    pub const fn is_of_host_memory(self) -> bool {
        self.0 & Self::OF_HOST_MEMORY != 0
    }

    /// Returns the index and the mark in one number, for [`from_bits`](Self::from_bits).
    #[must_use]
    #[inline]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// Makes the slot that had this number.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockState {
    /// Held by the caller of `allocate`.
    Live,
    /// Deallocated, but device work may still use it.
    Retired,
    /// Freed: its memory is the driver's or the pool's again.
    Freed,
    /// Deallocated, and kept by the debug guard to find writes after the free.
    Quarantined,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_host_memory_leaves_the_index_as_it_is() {
        for slot in [BlockSlot::new(0), BlockSlot::new((1 << 31) - 2)] {
            let marked = slot.of_host_memory();
            assert!(!slot.is_of_host_memory() && marked.is_of_host_memory(), "{slot:?}");
            assert_eq!(marked.index(), slot.index());
            assert_eq!(BlockSlot::from_bits(marked.to_bits()), marked);
        }
        assert_eq!(BlockSlot::NONE.index(), None);
        assert!(!BlockSlot::NONE.is_of_host_memory());
    }

    #[test]
    fn alignment_and_state_share_a_byte_and_stay_apart() {
        use BlockState::{Freed, Live, Quarantined, Retired};
        for shift in 0..usize::BITS {
            for state in [Live, Retired, Freed, Quarantined] {
                let packed = AlignmentAndState::new(1 << shift, state);
                assert_eq!((packed.alignment(), packed.state()), (1 << shift, state));
            }
        }
    }
}
