//! What can go wrong, to which block or stream, and what to do about it.

mod messages;
mod problems;

pub use crate::corruption::{Corruption, CorruptionKind};
pub use crate::shortage::{Holder, Limit, PoolShortage, ProcessHolder, SharedShortage};
pub use problems::{SizeProblem, StreamProblem};

use crate::shortage::{Held, Named, Pooled, SharedBy, advice, lack};
use crate::size::human_bytes;
use crate::{Access, AllocTag, DeviceBlock, Generation, PhysicalMemory, StreamId};

/// What the methods of a resource answer.
pub type ResourceResult<T> = Result<T, ResourceError>;

/// Why a call on a resource failed.
///
/// A failed call leaves the accounting and the ledger as they were (contract T4). Variants are
/// `#[non_exhaustive]`: match on what you need and end with `..`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// The size can never be allocated.
    #[non_exhaustive]
    #[error("cannot allocate {requested} bytes: {problem}")]
    InvalidSize {
        /// Bytes asked for.
        requested: usize,
        /// What is wrong with that number.
        problem: SizeProblem,
    },

    /// The device has no room, or a limit of a configuration allows no more.
    #[non_exhaustive]
    #[error(
        "{}; this resource holds {} live and {} retired{}: {}",
        lack(*.requested, *.device_ordinal, *.free, *.total, .limit),
        human_bytes(*.live), human_bytes(*.retired), Pooled(.pool), advice(.limit)
    )]
    OutOfMemory {
        /// Bytes asked for.
        requested: usize,
        /// CUDA device ordinal.
        device_ordinal: usize,
        /// Bytes free on the device, as the driver says; 0 if it could not be asked.
        free: u64,
        /// Bytes the device has; 0 if it could not be asked.
        total: u64,
        /// Bytes this resource has handed out.
        live: u64,
        /// Bytes given back to this resource that device work may still need.
        retired: u64,
        /// What the resource keeps, if it is a pool.
        pool: Option<Box<PoolShortage>>,
        /// The limit that refused; `None` if the device has no room.
        limit: Option<Box<Limit>>,
    },

    /// The budget has no room.
    #[non_exhaustive]
    #[error(
        "out of budget{}: {} requested, {} of {} left{}{}, {} pending: call reap_pending or raise the \
         limit",
        Named(.budget), human_bytes(*.requested as u64), human_bytes(*.remaining), human_bytes(*.limit),
        Held(.holders), SharedBy(.shared), human_bytes(*.pending)
    )]
    OutOfBudget {
        /// Whose budget, where it has a name.
        budget: AllocTag,
        /// Bytes asked for.
        requested: usize,
        /// Bytes of the whole budget.
        limit: u64,
        /// Bytes of the budget that are left.
        remaining: u64,
        /// Bytes that were given back but that device work may still need.
        pending: u64,
        /// Who holds the most, largest first.
        holders: Box<[Holder]>,
        /// The processes that share the limit, if a shared limit refused the request.
        shared: Option<Box<SharedShortage>>,
    },

    /// The CUDA driver refused a call.
    #[non_exhaustive]
    #[error(
        "{call} failed on device {device_ordinal}: {name} ({code}); {}", messages::advice(*.code)
    )]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// The `CUresult`.
        code: i32,
        /// Its name.
        name: &'static str,
        /// CUDA device ordinal.
        device_ordinal: usize,
    },

    /// The stream cannot be used here.
    #[non_exhaustive]
    #[error("{stream} cannot be used here: {problem}")]
    StreamMisuse {
        /// The stream named by the caller.
        stream: StreamId,
        /// What is wrong with it.
        problem: StreamProblem,
    },

    /// A fixed number of things is all in use.
    #[non_exhaustive]
    #[error("all {limit} {what} are in use: return one, or configure more")]
    Capacity {
        /// What there is no more of, plural.
        what: &'static str,
        /// How many there are.
        limit: usize,
    },

    /// Another stream has an open window on the block.
    #[non_exhaustive]
    #[error(
        "block {generation}: {requested} cannot prepare {access:?} while {holder} has a window \
         open on it: finish or cancel that use first"
    )]
    WindowConflict {
        /// The block.
        generation: Generation,
        /// The stream whose window is open.
        holder: StreamId,
        /// The stream that asked.
        requested: StreamId,
        /// The access that was asked for.
        access: Access,
    },

    /// The stream is capturing a graph, where this call would be left out or is illegal.
    #[non_exhaustive]
    #[error(
        "{stream} is capturing a graph, so memory cannot be allocated, freed or tracked on it: end \
         the capture first, or use another stream"
    )]
    StreamCapturing {
        /// The capturing stream.
        stream: StreamId,
    },

    /// The block was freed before.
    #[non_exhaustive]
    #[error(
        "use after free: block {generation} was given back, and its address may have another block \
         now: keep the block until its last use"
    )]
    UseAfterFree {
        /// The block that is no more.
        generation: Generation,
    },

    /// A range is not inside its block.
    #[non_exhaustive]
    #[error(
        "block {generation} has {bytes} bytes, so offset {offset}, length {len} is outside: use a range inside of the block"
    )]
    OutOfBounds {
        /// The block.
        generation: Generation,
        /// First byte of the range, from the block's start.
        offset: usize,
        /// Bytes in the range.
        len: usize,
        /// Bytes in the block.
        bytes: usize,
    },

    /// The block belongs to another resource.
    #[non_exhaustive]
    #[error(
        "block {generation} of device {block_device} was not allocated by this resource \
         (device {device_ordinal}): give it back to the one that made it"
    )]
    ForeignBlock {
        /// The block.
        generation: Generation,
        /// The device it is on.
        block_device: usize,
        /// The device of the resource that was asked.
        device_ordinal: usize,
    },

    /// The block is a part of the block that the resource allocated.
    #[non_exhaustive]
    #[error(
        "this is a part of block {generation} ({} of it at {ptr:#x}): restore the whole, then deallocate \
         or grow that (a part that an adaptor allocated is restored by that adaptor)",
        human_bytes(*.bytes as u64)
    )]
    PartOfBlock {
        /// The block, whole and part alike.
        generation: Generation,
        /// Device address of the part.
        ptr: u64,
        /// Bytes of the part.
        bytes: usize,
    },

    /// Physical memory belongs to another resource.
    #[non_exhaustive]
    #[error(
        "{} of physical memory of device {memory_device} were not created by this resource \
         (device {device_ordinal}): use them with the one that did", human_bytes(*.bytes)
    )]
    ForeignMemory {
        /// Bytes of the memory.
        bytes: u64,
        /// The device it is on.
        memory_device: usize,
        /// The device of the resource that was asked.
        device_ordinal: usize,
    },

    /// Physical memory is to be given back while addresses still lead to it.
    #[non_exhaustive]
    #[error(
        "{} of physical memory are still mapped at {mappings} addresses: unmap them first",
        human_bytes(*.bytes)
    )]
    StillMapped {
        /// Bytes of the memory.
        bytes: u64,
        /// At how many addresses it is mapped.
        mappings: u32,
    },

    /// The resource has no virtual memory, so it has no pages to create or map.
    #[non_exhaustive]
    #[error(
        "the resource of device {device_ordinal} has no virtual memory: use one whose \
         `virtual_memory` returns `Some`"
    )]
    NoVirtualMemory {
        /// CUDA device ordinal.
        device_ordinal: usize,
    },

    /// A block was written where it must not be: what the debug guard found.
    #[error("{0}")]
    Corrupted(Box<Corruption>),

    /// The device is gone for good, after a sticky driver error.
    #[non_exhaustive]
    #[error(
        "device {device_ordinal} is lost: {call} returned {code}; restart the process to use it again"
    )]
    DeviceLost {
        /// CUDA device ordinal.
        device_ordinal: usize,
        /// The driver's function that first said so.
        call: &'static str,
        /// The `CUresult`.
        code: i32,
    },

    /// This process is a fork of the one that opened the device: CUDA does not survive that.
    #[non_exhaustive]
    #[error(
        "device {device_ordinal} was opened before this process was forked, and CUDA does not \
         survive a fork: start the child as a new process"
    )]
    ForkedProcess {
        /// CUDA device ordinal.
        device_ordinal: usize,
    },
}

impl ResourceError {
    /// [`InvalidSize`](Self::InvalidSize) for zero bytes.
    #[must_use]
    pub const fn zero_size() -> Self {
        Self::InvalidSize { requested: 0, problem: SizeProblem::Zero }
    }

    /// [`InvalidSize`](Self::InvalidSize) for a size that overflows when rounded up.
    #[must_use]
    pub const fn size_overflow(requested: usize) -> Self {
        Self::InvalidSize { requested, problem: SizeProblem::Overflow }
    }

    /// [`InvalidSize`](Self::InvalidSize) for more than the device has.
    #[must_use]
    pub const fn beyond_device(requested: usize, device_bytes: u64) -> Self {
        Self::InvalidSize { requested, problem: SizeProblem::BeyondDevice { device_bytes } }
    }

    /// [`OutOfMemory`](Self::OutOfMemory): `free` and `total` as the driver says, `usage` as the
    /// resource says.
    #[must_use]
    pub const fn out_of_memory(
        requested: usize,
        device_ordinal: usize,
        (free, total): (u64, u64),
        usage: &crate::Usage,
    ) -> Self {
        let (live, retired, pool, limit) = (usage.live, usage.retired, None, None);
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

    /// What upstream of a pool has answered, in the words of the pool: what was asked of the pool,
    /// what it has handed out and keeps, and who holds the most of it. Errors that are not about
    /// room are as they were.
    #[must_use]
    pub fn in_pool(self, asked: usize, usage: &crate::Usage, shortage: PoolShortage) -> Self {
        match self {
            Self::OutOfMemory { device_ordinal, free, total, limit, .. } => {
                let (requested, live, retired) = (asked, usage.live, usage.retired);
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
            // To the budget, all of it is the pool's.
            Self::OutOfBudget { budget, limit, remaining, pending, shared, .. } => {
                let (requested, holders) = (asked, shortage.holders);
                Self::OutOfBudget { budget, requested, limit, remaining, pending, holders, shared }
            }
            other => other,
        }
    }

    /// [`OutOfBudget`](Self::OutOfBudget).
    #[must_use]
    pub fn out_of_budget(
        budget: AllocTag,
        requested: usize,
        limit: u64,
        remaining: u64,
        pending: u64,
        holders: Vec<Holder>,
    ) -> Self {
        let (holders, shared) = (holders.into_boxed_slice(), None);
        Self::OutOfBudget { budget, requested, limit, remaining, pending, holders, shared }
    }

    /// Adds the processes that share the limit to an [`OutOfBudget`](Self::OutOfBudget); returns other errors
    /// unchanged.
    #[must_use]
    pub fn shared_by(mut self, by: SharedShortage) -> Self {
        if let Self::OutOfBudget { shared, .. } = &mut self {
            *shared = Some(Box::new(by));
        }
        self
    }

    /// [`Driver`](Self::Driver).
    #[must_use]
    pub const fn driver(
        call: &'static str,
        code: i32,
        name: &'static str,
        device_ordinal: usize,
    ) -> Self {
        Self::Driver { call, code, name, device_ordinal }
    }

    /// [`StreamMisuse`](Self::StreamMisuse).
    #[must_use]
    pub const fn stream_misuse(stream: StreamId, problem: StreamProblem) -> Self {
        Self::StreamMisuse { stream, problem }
    }

    /// [`StreamMisuse`](Self::StreamMisuse) from a resource that does not track uses.
    #[must_use]
    pub const fn not_tracked(stream: StreamId) -> Self {
        Self::stream_misuse(stream, StreamProblem::NotTracked)
    }

    /// [`Capacity`](Self::Capacity).
    #[must_use]
    pub const fn capacity(what: &'static str, limit: usize) -> Self {
        Self::Capacity { what, limit }
    }

    /// [`WindowConflict`](Self::WindowConflict).
    #[must_use]
    pub const fn window_conflict(
        generation: Generation,
        holder: StreamId,
        requested: StreamId,
        access: Access,
    ) -> Self {
        Self::WindowConflict { generation, holder, requested, access }
    }

    /// [`StreamCapturing`](Self::StreamCapturing).
    #[must_use]
    pub const fn stream_capturing(stream: StreamId) -> Self {
        Self::StreamCapturing { stream }
    }

    /// [`UseAfterFree`](Self::UseAfterFree).
    #[must_use]
    pub const fn use_after_free(generation: Generation) -> Self {
        Self::UseAfterFree { generation }
    }

    /// [`OutOfBounds`](Self::OutOfBounds).
    #[must_use]
    pub const fn out_of_bounds(block: &DeviceBlock, offset: usize, len: usize) -> Self {
        Self::OutOfBounds { generation: block.generation(), offset, len, bytes: block.bytes() }
    }

    /// [`ForeignBlock`](Self::ForeignBlock), from a resource of `device_ordinal`.
    #[must_use]
    pub const fn foreign_block(block: &DeviceBlock, device_ordinal: usize) -> Self {
        let (generation, block_device) = (block.generation(), block.device_ordinal());
        Self::ForeignBlock { generation, block_device, device_ordinal }
    }

    /// [`PartOfBlock`](Self::PartOfBlock).
    #[must_use]
    pub const fn part_of_block(part: &DeviceBlock) -> Self {
        let (generation, ptr, bytes) = (part.generation(), part.ptr(), part.bytes());
        Self::PartOfBlock { generation, ptr, bytes }
    }

    /// [`InvalidSize`](Self::InvalidSize) for what is not a multiple of `granularity` bytes.
    #[must_use]
    pub const fn not_granular(requested: usize, granularity: u64) -> Self {
        Self::InvalidSize { requested, problem: SizeProblem::NotGranular { granularity } }
    }

    /// [`ForeignMemory`](Self::ForeignMemory), from a resource of `device_ordinal`.
    #[must_use]
    pub const fn foreign_memory(memory: &PhysicalMemory, device_ordinal: usize) -> Self {
        let (bytes, memory_device) = (memory.bytes(), memory.device_ordinal());
        Self::ForeignMemory { bytes, memory_device, device_ordinal }
    }

    /// [`StillMapped`](Self::StillMapped).
    #[must_use]
    pub const fn still_mapped(memory: &PhysicalMemory, mappings: u32) -> Self {
        Self::StillMapped { bytes: memory.bytes(), mappings }
    }

    /// [`NoVirtualMemory`](Self::NoVirtualMemory).
    #[must_use]
    pub const fn no_virtual_memory(device_ordinal: usize) -> Self {
        Self::NoVirtualMemory { device_ordinal }
    }

    /// [`DeviceLost`](Self::DeviceLost).
    #[must_use]
    pub const fn device_lost(device_ordinal: usize, call: &'static str, code: i32) -> Self {
        Self::DeviceLost { device_ordinal, call, code }
    }

    /// [`ForkedProcess`](Self::ForkedProcess).
    #[must_use]
    pub const fn forked_process(device_ordinal: usize) -> Self {
        Self::ForkedProcess { device_ordinal }
    }
}

/// A block could not be given back: why, and the block.
///
/// No memory is lost: try again later, or give the block to the right resource.
#[derive(Debug, thiserror::Error)]
#[error("{block} could not be given back: {error}")]
#[non_exhaustive]
#[must_use = "the block is inside: dropping this error leaks its memory"]
pub struct DeallocateError {
    /// Why.
    #[source]
    pub error: ResourceError,
    /// The block, as it was.
    pub block: DeviceBlock,
}

impl DeallocateError {
    /// The answer of a resource that keeps the block with its owner.
    pub fn new(error: ResourceError, block: DeviceBlock) -> Box<Self> {
        Box::new(Self { error, block })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_stay_small_enough_to_return_by_value() {
        assert!(size_of::<ResourceError>() <= 80, "{}", size_of::<ResourceError>());
    }

    /// Below a pool there is one holder of everything; who has what, the pool knows.
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
