//! The fixture of the controls: two streams, the kernels, and blocks of a resource.

#![allow(unsafe_code, reason = "kernels that commit faults")]

use std::sync::Arc;

use cudarc::driver::{CudaStream, DriverError, result};
use dmr_core::{AllocTag, BlockState, DeviceBlock, DeviceMemoryResource};
use dmr_streams::{StreamLease, StreamPool};

use super::PREFIX;
use crate::faults::Faults;
use crate::machine::Machine;
use crate::{Outcome, lines};

/// Bytes of a control's block: an odd size, which every alignment rounds up.
pub(super) const BYTES: u32 = 1001;

/// Two streams of a pool, and the kernels.
pub(super) struct Scene {
    pub(super) a: StreamLease,
    pub(super) b: StreamLease,
    pub(super) faults: Faults,
    pub(super) streams: Arc<StreamPool>,
}

impl Scene {
    pub(super) fn new(machine: &Machine) -> Outcome<Self> {
        let streams = machine.streams()?;
        let faults = Faults::load(streams.device().context(), PREFIX)?;
        Ok(Self { a: streams.acquire()?, b: streams.acquire()?, faults, streams })
    }

    /// Prints the stack, and returns it.
    pub(super) fn on<R: DeviceMemoryResource>(resource: R) -> R {
        lines::stack(&resource);
        resource
    }

    /// Allocates a block on the stream `a`.
    pub(super) fn allocate(&self, resource: &impl DeviceMemoryResource) -> Outcome<DeviceBlock> {
        Ok(resource.allocate(BYTES as usize, self.a.id(), AllocTag::new("control"))?)
    }

    /// Allocates a block on the stream `a`, and writes every byte of it there.
    pub(super) fn allocate_written(
        &self,
        resource: &impl DeviceMemoryResource,
    ) -> Outcome<DeviceBlock> {
        let block = self.allocate(resource)?;
        let stream = self.a.stream().cu_stream();
        // SAFETY: the block is this long, and new; the stream is leased.
        unsafe { result::memset_d8_async(block.ptr(), 0, block.bytes(), stream)? };
        Ok(block)
    }

    /// Deallocates a block, waits for all work, and reaps.
    ///
    /// Errors are ignored: a tool may end the context at a fault.
    pub(super) fn free(&self, resource: &impl DeviceMemoryResource, block: DeviceBlock) {
        let _: Result<BlockState, _> = resource.deallocate(block);
        let _: Result<(), _> = self.streams.device().synchronize();
        let _: Result<u64, _> = resource.reap_pending();
    }

    /// Commits the fault of an overrun: a kernel writes one byte behind a block.
    pub(super) fn overrun(&self, resource: &impl DeviceMemoryResource) -> Outcome {
        let block = self.allocate_written(resource)?;
        lines::address(block.ptr() + u64::from(BYTES));
        // SAFETY: the fault: one byte behind the block.
        unsafe { self.faults.write(self.stream_a(), block.ptr(), BYTES + 1)? };
        self.free(resource, block);
        Ok(())
    }

    /// Commits the fault of a read of memory that was never written: a kernel reads a new block,
    /// and adds to the word in `sum`. Frees both blocks.
    pub(super) fn read_unwritten(
        &self,
        resource: &impl DeviceMemoryResource,
        sum: DeviceBlock,
    ) -> Outcome {
        let block = self.allocate(resource)?;
        lines::address(block.ptr());
        // SAFETY: the fault: this block was never written, only one before it in its memory.
        unsafe { self.faults.read(self.stream_a(), block.ptr(), 1, sum.ptr())? };
        self.free(resource, block);
        self.free(resource, sum);
        Ok(())
    }

    pub(super) fn stream_a(&self) -> &Arc<CudaStream> {
        self.a.stream()
    }

    pub(super) fn stream_b(&self) -> &Arc<CudaStream> {
        self.b.stream()
    }

    /// Waits for all work; the tool may have made it fail.
    pub(super) fn end(self) {
        let _: Result<(), DriverError> = self.streams.device().context().synchronize();
    }
}
