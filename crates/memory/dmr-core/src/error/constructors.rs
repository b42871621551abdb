//! The functions that make errors, and those that add what an outer layer has to report.

use std::sync::Arc;

use super::{
    AddressProblem, Holder, Limit, PeerProblem, PoolShortage, ResourceError, SharedShortage,
    SizeProblem, StreamProblem,
};
use crate::{Access, AllocTag, BlockId, DeviceBlock, Generation, PhysicalMemory, StreamId};

impl ResourceError {
    /// Makes an [`InvalidSize`](Self::InvalidSize) for zero bytes.
    #[must_use]
    pub const fn zero_size() -> Self {
        Self::InvalidSize { requested: 0, problem: SizeProblem::Zero }
    }

    /// Makes an [`InvalidSize`](Self::InvalidSize) for a size that overflows when rounded up.
    #[must_use]
    pub const fn size_overflow(requested: usize) -> Self {
        Self::InvalidSize { requested, problem: SizeProblem::Overflow }
    }

    /// Makes an [`InvalidSize`](Self::InvalidSize) for more bytes than the device has.
    #[must_use]
    pub const fn beyond_device(requested: usize, device_bytes: u64) -> Self {
        Self::InvalidSize { requested, problem: SizeProblem::BeyondDevice { device_bytes } }
    }

    /// Makes an [`InvalidSize`](Self::InvalidSize) for a resource that only adopts memory.
    #[must_use]
    pub const fn adopts_only(requested: usize) -> Self {
        Self::InvalidSize { requested, problem: SizeProblem::AdoptsOnly }
    }

    /// Makes a [`NotAdopted`](Self::NotAdopted).
    #[must_use]
    pub const fn not_adopted(
        ptr: u64,
        bytes: usize,
        device_ordinal: usize,
        problem: AddressProblem,
    ) -> Self {
        Self::NotAdopted { ptr, bytes, device_ordinal, problem }
    }

    /// Makes an [`OutOfMemory`](Self::OutOfMemory): `free` and `total` are the driver's figures,
    /// `usage` is the resource's.
    #[must_use]
    pub const fn out_of_memory(
        requested: usize,
        device_ordinal: usize,
        (free, total): (u64, u64),
        usage: &crate::Usage,
    ) -> Self {
        let live = usage.live;
        let retired = usage.retired;
        let pool = None;
        let limit = None;
        Self::OutOfMemory { requested, device_ordinal, free, total, live, retired, pool, limit }
    }

    /// Adds the limit that refused to an [`OutOfMemory`](Self::OutOfMemory); returns other errors
    /// unchanged.
    #[must_use]
    pub fn by_limit(mut self, by: Limit) -> Self {
        if let Self::OutOfMemory { limit, .. } = &mut self {
            *limit = Some(Box::new(by));
        }
        self
    }

    /// Replaces the figures in an error of a pool's upstream by those of the pool: the bytes
    /// requested from the pool, its usage, and the tags that hold the most. Returns errors other
    /// than [`OutOfMemory`](Self::OutOfMemory) and [`OutOfBudget`](Self::OutOfBudget) unchanged.
    #[must_use]
    pub fn in_pool(self, requested: usize, usage: &crate::Usage, shortage: PoolShortage) -> Self {
        match self {
            Self::OutOfMemory { device_ordinal, free, total, limit, .. } => {
                let live = usage.live;
                let retired = usage.retired;
                let pool = Some(Box::new(shortage));
                Self::OutOfMemory {
                    requested,
                    device_ordinal,
                    free,
                    total,
                    live,
                    retired,
                    pool,
                    limit,
                }
            }
            // A budget below a pool sees the pool as the only holder.
            Self::OutOfBudget { budget, limit, remaining, pending, shared, .. } => {
                let holders = shortage.holders;
                Self::OutOfBudget { budget, requested, limit, remaining, pending, holders, shared }
            }
            other => other,
        }
    }

    /// Makes an [`OutOfBudget`](Self::OutOfBudget).
    #[must_use]
    pub fn out_of_budget(
        budget: AllocTag,
        requested: usize,
        limit: u64,
        remaining: u64,
        pending: u64,
        holders: Vec<Holder>,
    ) -> Self {
        let holders = holders.into_boxed_slice();
        let shared = None;
        Self::OutOfBudget { budget, requested, limit, remaining, pending, holders, shared }
    }

    /// Adds the processes that share the limit to an [`OutOfBudget`](Self::OutOfBudget); returns
    /// other errors unchanged.
    #[must_use]
    pub fn shared_by(mut self, by: SharedShortage) -> Self {
        if let Self::OutOfBudget { shared, .. } = &mut self {
            *shared = Some(Box::new(by));
        }
        self
    }

    /// Makes a [`Driver`](Self::Driver).
    #[must_use]
    pub const fn driver(
        call: &'static str,
        code: i32,
        name: &'static str,
        device_ordinal: usize,
    ) -> Self {
        Self::Driver { call, code, name, device_ordinal }
    }

    /// Makes a [`StreamMisuse`](Self::StreamMisuse).
    #[must_use]
    pub const fn stream_misuse(stream: StreamId, problem: StreamProblem) -> Self {
        Self::StreamMisuse { stream, problem }
    }

    /// Makes a [`StreamMisuse`](Self::StreamMisuse) for a resource that does not track uses.
    #[must_use]
    pub const fn not_tracked(stream: StreamId) -> Self {
        Self::stream_misuse(stream, StreamProblem::NotTracked)
    }

    /// Makes a [`Capacity`](Self::Capacity).
    #[must_use]
    pub const fn capacity(what: &'static str, limit: usize) -> Self {
        Self::Capacity { what, limit, advice: "return one, or configure more" }
    }

    /// Sets the advice of a [`Capacity`](Self::Capacity); returns other errors unchanged.
    #[must_use]
    pub fn advised(mut self, what_to_do: &'static str) -> Self {
        if let Self::Capacity { advice, .. } = &mut self {
            *advice = what_to_do;
        }
        self
    }

    /// Makes a [`WindowConflict`](Self::WindowConflict).
    #[must_use]
    pub const fn window_conflict(
        generation: Generation,
        holder: StreamId,
        requested: StreamId,
        access: Access,
    ) -> Self {
        Self::WindowConflict { generation, holder, requested, access }
    }

    /// Makes a [`StreamCapturing`](Self::StreamCapturing).
    #[must_use]
    pub const fn stream_capturing(stream: StreamId) -> Self {
        Self::StreamCapturing { stream }
    }

    /// Makes a [`UseAfterFree`](Self::UseAfterFree).
    #[must_use]
    pub const fn use_after_free(generation: Generation) -> Self {
        Self::UseAfterFree { generation }
    }

    /// Makes an [`OutOfBounds`](Self::OutOfBounds).
    #[must_use]
    pub const fn out_of_bounds(block: &DeviceBlock, offset: usize, len: usize) -> Self {
        Self::OutOfBounds { generation: block.generation(), offset, len, bytes: block.bytes() }
    }

    /// Makes a [`ForeignBlock`](Self::ForeignBlock), from a resource of `device_ordinal`.
    #[must_use]
    pub const fn foreign_block(block: &DeviceBlock, device_ordinal: usize) -> Self {
        let generation = block.generation();
        let block_device = block.device_ordinal();
        Self::ForeignBlock { generation, block_device, device_ordinal }
    }

    /// Makes a [`HostMemory`](Self::HostMemory).
    #[must_use]
    pub const fn host_memory(block: &DeviceBlock) -> Self {
        Self::HostMemory { generation: block.generation() }
    }

    /// Makes a [`PartOfBlock`](Self::PartOfBlock).
    #[must_use]
    pub const fn part_of_block(part: &DeviceBlock) -> Self {
        let generation = part.generation();
        let ptr = part.ptr();
        let bytes = part.bytes();
        Self::PartOfBlock { generation, ptr, bytes }
    }

    /// Makes a [`NotGivenAway`](Self::NotGivenAway). `resource` names the resource: "the pool".
    #[must_use]
    pub const fn not_given_away(block: &DeviceBlock, resource: &'static str) -> Self {
        Self::NotGivenAway { generation: block.generation(), resource }
    }

    /// Makes an [`InvalidSize`](Self::InvalidSize) for a size that is not a multiple of
    /// `granularity` bytes.
    #[must_use]
    pub const fn not_granular(requested: usize, granularity: u64) -> Self {
        Self::InvalidSize { requested, problem: SizeProblem::NotGranular { granularity } }
    }

    /// Makes a [`WrongMemory`](Self::WrongMemory).
    #[must_use]
    #[cold]
    pub fn wrong_memory(
        call: &'static str,
        returned: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> Self {
        let returned = returned.to_string().into();
        let expected = expected.to_string().into();
        Self::WrongMemory { call, returned, expected }
    }

    /// Makes a [`Library`](Self::Library).
    #[must_use]
    #[cold]
    pub const fn library(
        library: &'static str,
        call: &'static str,
        message: Box<str>,
        device_ordinal: usize,
    ) -> Self {
        Self::Library { library, call, message, device_ordinal }
    }

    /// Makes a [`ForeignMemory`](Self::ForeignMemory), from a resource of `device_ordinal`.
    #[must_use]
    pub const fn foreign_memory(memory: &PhysicalMemory, device_ordinal: usize) -> Self {
        let bytes = memory.bytes();
        let memory_device = memory.device_ordinal();
        Self::ForeignMemory { bytes, memory_device, device_ordinal }
    }

    /// Makes a [`StillMapped`](Self::StillMapped).
    #[must_use]
    pub const fn still_mapped(memory: &PhysicalMemory, mappings: u32) -> Self {
        Self::StillMapped { bytes: memory.bytes(), mappings }
    }

    /// Makes a [`NoVirtualMemory`](Self::NoVirtualMemory).
    #[must_use]
    pub const fn no_virtual_memory(device_ordinal: usize) -> Self {
        Self::NoVirtualMemory { device_ordinal }
    }

    /// Makes an [`OtherPool`](Self::OtherPool), for a use on a stream of `stream_device`.
    #[must_use]
    pub const fn other_pool(block: BlockId, stream: StreamId, stream_device: usize) -> Self {
        let generation = block.generation();
        let block_device = block.device_ordinal();
        Self::OtherPool { generation, block_device, stream, stream_device }
    }

    /// Makes a [`NoPeerAccess`](Self::NoPeerAccess).
    #[must_use]
    pub const fn no_peer_access(
        device_ordinal: usize,
        memory_device: usize,
        problem: PeerProblem,
    ) -> Self {
        Self::NoPeerAccess { device_ordinal, memory_device, problem }
    }

    /// Makes a [`DeviceLost`](Self::DeviceLost).
    #[must_use]
    pub const fn device_lost(device_ordinal: usize, call: &'static str, code: i32) -> Self {
        Self::DeviceLost { device_ordinal, call, code, finding: None }
    }

    /// Makes a [`DeviceLost`](Self::DeviceLost), with the finding of the simulated driver if it has
    /// one.
    #[must_use]
    pub const fn device_lost_by(
        device_ordinal: usize,
        call: &'static str,
        code: i32,
        finding: Option<Arc<str>>,
    ) -> Self {
        Self::DeviceLost { device_ordinal, call, code, finding }
    }

    /// Makes a [`ForkedProcess`](Self::ForkedProcess).
    #[must_use]
    pub const fn forked_process(device_ordinal: usize) -> Self {
        Self::ForkedProcess { device_ordinal }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ProcessHolder;
    use super::*;

    /// A budget below a pool has one holder, the pool; the pool has the holders of its blocks.
    #[test]
    fn in_a_pool_the_holders_are_the_pools() {
        let holder = |name, bytes| Holder { tag: AllocTag::new(name), bytes, blocks: 1 };
        let inside = vec![holder("rows", 60), holder("keys", 30)];
        let holders = inside.clone().into_boxed_slice();
        let shortage = PoolShortage { reserved: 100, holders, ..PoolShortage::default() };
        let budget = AllocTag::new("all");
        let refused =
            ResourceError::out_of_budget(budget, 50, 100, 0, 0, vec![holder("pool", 100)]);
        let expected = ResourceError::out_of_budget(budget, 7, 100, 0, 0, inside);
        let usage = crate::Usage::default();
        assert_eq!(refused.clone().in_pool(7, &usage, shortage.clone()), expected);
        let processes = vec![ProcessHolder { pid: 42, bytes: 100, ..ProcessHolder::default() }];
        let shared = SharedShortage { processes: processes.into(), problem: None };
        let refused = refused.shared_by(shared.clone()).in_pool(7, &usage, shortage.clone());
        assert_eq!(refused, expected.shared_by(shared));
        let other = ResourceError::device_lost(0, "cuEventQuery", 700);
        assert_eq!(other.clone().in_pool(7, &usage, shortage), other);
    }
}
