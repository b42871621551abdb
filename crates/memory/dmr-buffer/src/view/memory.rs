//! The kinds of memory that views are of.

use dmr_core::{BlockId, DeviceBlock};
use dmr_pinned::PinnedMemory;
use dmr_streams::MemoryOrigin;

use crate::owner::Kind;

/// Memory that views are of. No other crate can name it.
pub trait ViewedMemory: Sync {
    /// The name of a view of it.
    const VIEW: &'static str;
    /// The name of a mutable view of it.
    const VIEW_MUT: &'static str;
    /// The table in which its uses are.
    const KIND: Kind;

    /// Returns its block.
    fn block(&self) -> &DeviceBlock;

    /// Returns the origin of memory in a block of this kind.
    fn origin(block: BlockId) -> MemoryOrigin<'static>;
}

impl ViewedMemory for DeviceBlock {
    const VIEW: &'static str = "DeviceView";
    const VIEW_MUT: &'static str = "DeviceViewMut";
    const KIND: Kind = Kind::Device;

    fn block(&self) -> &DeviceBlock {
        self
    }

    fn origin(block: BlockId) -> MemoryOrigin<'static> {
        MemoryOrigin::Block(block)
    }
}

impl ViewedMemory for PinnedMemory {
    const VIEW: &'static str = "PinnedView";
    const VIEW_MUT: &'static str = "PinnedViewMut";
    const KIND: Kind = Kind::Pinned;

    fn block(&self) -> &DeviceBlock {
        PinnedMemory::block(self)
    }

    fn origin(block: BlockId) -> MemoryOrigin<'static> {
        MemoryOrigin::Pinned(block)
    }
}
