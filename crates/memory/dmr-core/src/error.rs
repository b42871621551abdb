//! Errors: what failed, for which block or stream, and what to do.

mod constructors;
mod messages;
mod problems;

pub use crate::corruption::{Corruption, CorruptionKind};
pub use crate::peer::PeerProblem;
pub use crate::shortage::{Holder, Limit, PoolShortage, ProcessHolder, SharedShortage};
pub use problems::{AddressProblem, SizeProblem, StreamProblem};

use std::sync::Arc;

use crate::human::human_bytes;
use crate::shortage::{Held, Named, Pooled, SharedBy, advice, lack};
use crate::{Access, AllocTag, DeviceBlock, Generation, StreamId};

/// The result of a resource's methods.
pub type ResourceResult<T> = Result<T, ResourceError>;

/// The error of a call on a resource.
///
/// A failed call changes neither the accounting nor the ledger (contract T4). Variants are
/// `#[non_exhaustive]`: match on what you need and end with `..`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// The size can never be allocated.
    #[non_exhaustive]
    #[error("cannot allocate {requested} bytes: {problem}")]
    InvalidSize {
        /// Requested bytes.
        requested: usize,
        /// The problem with that number.
        problem: SizeProblem,
    },

    /// The device has not enough free memory, or a configured limit refuses the request.
    #[non_exhaustive]
    #[error(
        "{}; this resource holds {} live and {} retired{}: {}",
        lack(*.requested, *.device_ordinal, *.free, *.total, .limit),
        human_bytes(*.live), human_bytes(*.retired), Pooled(.pool), advice(.limit)
    )]
    OutOfMemory {
        /// Requested bytes.
        requested: usize,
        /// CUDA device ordinal.
        device_ordinal: usize,
        /// Free bytes of the device, as the driver reports them; 0 if the driver reports none.
        free: u64,
        /// All bytes of the device; 0 if the driver reports none.
        total: u64,
        /// Bytes of this resource's live blocks.
        live: u64,
        /// Bytes of this resource's retired blocks: deallocated, and still used by device work.
        retired: u64,
        /// The state of the pool, if the resource is one.
        pool: Option<Box<PoolShortage>>,
        /// The limit that refused the request; `None` if the device has not enough memory.
        limit: Option<Box<Limit>>,
    },

    /// The request exceeds what is left of a budget.
    #[non_exhaustive]
    #[error(
        "out of budget{}: {} requested, {} of {} left{}{}, {} pending: call reap_pending or raise the \
         limit",
        Named(.budget), human_bytes(*.requested as u64), human_bytes(*.remaining), human_bytes(*.limit),
        Held(.holders), SharedBy(.shared), human_bytes(*.pending)
    )]
    OutOfBudget {
        /// The name of the budget; untagged if it has none.
        budget: AllocTag,
        /// Requested bytes.
        requested: usize,
        /// Bytes of the whole budget.
        limit: u64,
        /// Bytes of the budget that are left.
        remaining: u64,
        /// Bytes that were deallocated and that device work may still use.
        pending: u64,
        /// The tags that hold the most, largest first.
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
        /// The problem with the stream.
        problem: StreamProblem,
    },

    /// All of a fixed number of things are in use.
    #[non_exhaustive]
    #[error("all {limit} {what} are in use: {advice}")]
    Capacity {
        /// The things, in the plural.
        what: &'static str,
        /// Their number.
        limit: usize,
        /// The advice, which names the setting if there is one.
        advice: &'static str,
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
        /// The stream of the refused use.
        requested: StreamId,
        /// The access of the refused use.
        access: Access,
    },

    /// The stream is capturing a graph, which cannot contain this call.
    #[non_exhaustive]
    #[error(
        "{stream} is capturing a graph, so memory cannot be allocated, freed or tracked on it: end \
         the capture first, or use another stream"
    )]
    StreamCapturing {
        /// The capturing stream.
        stream: StreamId,
    },

    /// The block was deallocated before.
    #[non_exhaustive]
    #[error(
        "use after free: block {generation} was deallocated, and its address may belong to another \
         block now: keep the block until its last use"
    )]
    UseAfterFree {
        /// The deallocated block.
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
         (device {device_ordinal}): pass it to the resource that allocated it"
    )]
    ForeignBlock {
        /// The block.
        generation: Generation,
        /// The device it is on.
        block_device: usize,
        /// The device of this resource.
        device_ordinal: usize,
    },

    /// The block is host memory, and the resource divides device memory only.
    #[non_exhaustive]
    #[error(
        "block {generation} of the upstream resource is host memory: pinned memory is pooled already, so use \
         `PinnedResource` without a pool"
    )]
    HostMemory {
        /// The block.
        generation: Generation,
    },

    /// The block is a part of a block that the resource allocated.
    #[non_exhaustive]
    #[error(
        "this is a part of block {generation} ({} of it at {ptr:#x}): restore the whole, then deallocate \
         or grow that (an adaptor restores the parts that it has allocated)",
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

    /// The memory of the block cannot be given away, because the driver has no allocation of its
    /// own for it.
    #[non_exhaustive]
    #[error(
        "{resource} cannot give block {generation} away, which is not an allocation of the driver: copy it to a buffer \
         of a backend without a pool, or of `CudaSlices`"
    )]
    NotGivenAway {
        /// The block.
        generation: Generation,
        /// The resource, or layer, that refused.
        resource: &'static str,
    },

    /// Memory of another owner cannot be adopted as a block.
    #[non_exhaustive]
    #[error("{bytes} bytes at {ptr:#x} cannot be adopted on device {device_ordinal}: {problem}")]
    NotAdopted {
        /// The address.
        ptr: u64,
        /// The size in bytes.
        bytes: usize,
        /// The device that should have adopted it.
        device_ordinal: usize,
        /// The problem with the memory.
        problem: AddressProblem,
    },

    /// The upstream resource returned other memory than it was asked for, or than it was given and
    /// refused. What it was given is still there.
    #[non_exhaustive]
    #[error(
        "`{call}` of the upstream resource returned {returned} instead of {expected}: correct that resource, or \
         replace it"
    )]
    WrongMemory {
        /// The method of the upstream resource.
        call: &'static str,
        /// The memory that it returned.
        returned: Box<str>,
        /// The memory that it should have returned.
        expected: Box<str>,
    },

    /// A library that the resource calls has failed.
    #[non_exhaustive]
    #[error(
        "{library} failed to {call} on device {device_ordinal}: {message}: the resource is unchanged; correct what \
         {library} reports"
    )]
    Library {
        /// The name of the library.
        library: &'static str,
        /// The call, as a verb: "allocate".
        call: &'static str,
        /// The message of the library.
        message: Box<str>,
        /// CUDA device ordinal.
        device_ordinal: usize,
    },

    /// Physical memory belongs to another resource.
    #[non_exhaustive]
    #[error(
        "{} of physical memory of device {memory_device} were not created by this resource \
         (device {device_ordinal}): use them with the resource that created them", human_bytes(*.bytes)
    )]
    ForeignMemory {
        /// Bytes of the memory.
        bytes: u64,
        /// The device it is on.
        memory_device: usize,
        /// The device of this resource.
        device_ordinal: usize,
    },

    /// Physical memory cannot be destroyed while it is mapped.
    #[non_exhaustive]
    #[error(
        "{} of physical memory are still mapped at {mappings} addresses: unmap them first",
        human_bytes(*.bytes)
    )]
    StillMapped {
        /// Bytes of the memory.
        bytes: u64,
        /// The number of addresses at which it is mapped.
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

    /// A use names a block of another stream pool, on the same device or on another.
    #[non_exhaustive]
    #[error(
        "{stream} of device {stream_device} cannot use block {generation} of device {block_device}: {}",
        messages::other_pool(*.block_device, *.stream_device)
    )]
    OtherPool {
        /// The block.
        generation: Generation,
        /// The device it is on.
        block_device: usize,
        /// The stream of the use.
        stream: StreamId,
        /// The device of the stream.
        stream_device: usize,
    },

    /// A device cannot access the memory of another device.
    #[non_exhaustive]
    #[error(
        "device {device_ordinal} cannot access the memory of device {memory_device}: {problem}"
    )]
    NoPeerAccess {
        /// The device that should access the memory.
        device_ordinal: usize,
        /// The device that the memory is on.
        memory_device: usize,
        /// The reason.
        problem: PeerProblem,
    },

    /// The debug guard has found a write outside of a block, or after it was deallocated.
    #[error("{0}")]
    Corrupted(Box<Corruption>),

    /// The device is lost, after a sticky driver error: no call of this process can use it again.
    #[non_exhaustive]
    #[error(
        "device {device_ordinal} is lost: {call} returned {code}; restart the process to use it again{}",
        messages::of_finding(.finding.as_deref())
    )]
    DeviceLost {
        /// CUDA device ordinal.
        device_ordinal: usize,
        /// The driver's function that first reported it.
        call: &'static str,
        /// The `CUresult`.
        code: i32,
        /// The finding of the simulated driver about the work by which the device was lost; `None`
        /// with NVIDIA's driver.
        finding: Option<Arc<str>>,
    },

    /// This process is a forked child of the one that opened the device, and CUDA does not survive
    /// a fork.
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
    /// Returns whether the call could succeed with less memory: if less of it were requested, or
    /// more were free. Of the device, of the host, or of a budget or a limit.
    #[must_use]
    pub const fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory { .. } => true,
            // Not if the account that processes share cannot be used.
            Self::OutOfBudget { shared: Some(shared), .. } => shared.problem.is_none(),
            Self::OutOfBudget { shared: None, .. } => true,
            // `CUDA_ERROR_OUT_OF_MEMORY`.
            Self::Driver { code, .. } => *code == 2,
            Self::InvalidSize { problem, .. } => {
                matches!(problem, SizeProblem::Overflow | SizeProblem::BeyondDevice { .. })
            }
            _ => false,
        }
    }
}

/// The error of [`deallocate`](crate::DeviceMemoryResource::deallocate), with the block.
///
/// No memory is lost: call `deallocate` again later, or that of the resource that allocated the
/// block. Where a layer has found that its upstream kept the block and returned another one, the
/// error is a [`WrongMemory`](ResourceError::WrongMemory), and the other block is inside.
#[derive(Debug, thiserror::Error)]
#[error("{block} could not be deallocated: {error}")]
#[non_exhaustive]
#[must_use = "the block is inside: dropping this error leaks its memory"]
pub struct DeallocateError {
    /// The cause.
    #[source]
    pub error: ResourceError,
    /// The block, unchanged.
    pub block: DeviceBlock,
}

impl DeallocateError {
    /// Makes the error, which contains the block.
    pub fn new(error: ResourceError, block: DeviceBlock) -> Box<Self> {
        Box::new(Self { error, block })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_cannot_be_used_is_no_shortage_of_memory() {
        let mut refused = ResourceError::out_of_budget(AllocTag::UNTAGGED, 7, 10, 5, 0, Vec::new());
        assert!(refused.is_out_of_memory());
        for (problem, expected) in [(None, true), (Some("damaged".into()), false)] {
            if let ResourceError::OutOfBudget { shared, .. } = &mut refused {
                *shared = Some(Box::new(SharedShortage { problem, ..SharedShortage::default() }));
            }
            assert_eq!(refused.is_out_of_memory(), expected, "{refused}");
        }
    }

    #[test]
    fn errors_stay_small_enough_to_return_by_value() {
        assert!(size_of::<ResourceError>() <= 80, "{}", size_of::<ResourceError>());
    }
}
