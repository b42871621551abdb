//! The two ways to submit a step: launch by launch, and into a capture.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use dmr_core::{AllocTag, BlockId, ByteRange, DeviceBlock, DeviceMemoryResource};
use dmr_graphs::{Capture, GraphMemory};
use dmr_launch::LaunchRecorder;
use dmr_streams::{DeviceContext, MemoryOrigin, StreamLease, StreamPool, TrackedMemory};

use crate::BenchError;

const TAG: AllocTag = AllocTag::new("decode");

/// A resource and its streams.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) resource: Arc<dyn DeviceMemoryResource>,
    pub(super) streams: Arc<StreamPool>,
}

impl DeviceContext for Context {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

/// Memory of a step, by its address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) address: u64,
    pub(super) bytes: usize,
    /// `None` for memory of a capture, whose use the capture records by itself.
    block: Option<BlockId>,
}

impl Memory {
    fn of(block: &DeviceBlock) -> Self {
        Self { address: block.ptr(), bytes: block.bytes(), block: Some(block.id()) }
    }
}

impl TrackedMemory for Memory {
    fn device_ptr(&self) -> u64 {
        self.address
    }

    fn size_in_bytes(&self) -> usize {
        self.bytes
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        self.block.map_or(MemoryOrigin::Empty, MemoryOrigin::Block)
    }

    fn byte_range(&self) -> ByteRange {
        ByteRange::WHOLE
    }
}

/// A block that is freed on drop.
pub(super) struct Owned {
    resource: Arc<dyn DeviceMemoryResource>,
    block: Option<DeviceBlock>,
    pub(super) memory: Memory,
}

impl Owned {
    pub(super) fn new(ctx: &Context, home: &StreamLease, bytes: usize) -> Result<Self, BenchError> {
        let resource = Arc::clone(&ctx.resource);
        let block = resource.allocate(bytes, home.id(), TAG)?;
        let memory = Memory::of(&block);
        Ok(Self { resource, block: Some(block), memory })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // The resource reports a failure.
        self.block.take().map(|block| self.resource.deallocate(block));
    }
}

/// The work of one operation, which the closure enqueues.
pub(super) type Work<'w> = &'w mut dyn FnMut(&Arc<CudaStream>) -> Result<(), BenchError>;

/// A way to submit the operations of a step.
pub(super) trait Submit {
    /// Allocates memory for intermediate results.
    fn allocate(&mut self, bytes: usize) -> Result<Memory, BenchError>;

    /// Frees memory, after all that was submitted.
    fn free(&mut self, memory: Memory) -> Result<(), BenchError>;

    /// Submits an operation that reads and writes this memory.
    fn submit(
        &mut self,
        reads: &[Memory],
        writes: &[Memory],
        work: Work<'_>,
    ) -> Result<(), BenchError>;
}

/// Submits each operation as a launch. Intermediate results are blocks of the resource.
pub(super) struct Eager<'e> {
    ctx: &'e Context,
    stream: &'e StreamLease,
    held: Vec<DeviceBlock>,
}

impl<'e> Eager<'e> {
    pub(super) fn new(ctx: &'e Context, stream: &'e StreamLease) -> Self {
        Self { ctx, stream, held: Vec::new() }
    }
}

impl Submit for Eager<'_> {
    fn allocate(&mut self, bytes: usize) -> Result<Memory, BenchError> {
        let block = self.ctx.resource.allocate(bytes, self.stream.id(), TAG)?;
        let memory = Memory::of(&block);
        self.held.push(block);
        Ok(memory)
    }

    fn free(&mut self, memory: Memory) -> Result<(), BenchError> {
        let at = self.held.iter().position(|block| block.ptr() == memory.address);
        if let Some(at) = at {
            self.ctx.resource.deallocate(self.held.swap_remove(at))?;
        }
        Ok(())
    }

    fn submit(
        &mut self,
        reads: &[Memory],
        writes: &[Memory],
        work: Work<'_>,
    ) -> Result<(), BenchError> {
        let mut launch = LaunchRecorder::new_strict(self.stream);
        for memory in reads {
            launch.read(memory);
        }
        for memory in writes {
            launch.read_write(&mut { *memory });
        }
        launch.launch(self.ctx, |stream| work(stream)).map_err(BenchError::new)
    }
}

impl Drop for Eager<'_> {
    fn drop(&mut self) {
        for block in self.held.drain(..) {
            // The resource reports a failure.
            let _ = self.ctx.resource.deallocate(block);
        }
    }
}

/// Submits the operations to a capture. Intermediate results are memory of its pool.
pub(super) struct Captured<'a, 'c> {
    capture: &'a mut Capture<'c>,
    held: Vec<GraphMemory<'c>>,
}

impl<'a, 'c> Captured<'a, 'c> {
    pub(super) fn new(capture: &'a mut Capture<'c>) -> Self {
        Self { capture, held: Vec::new() }
    }
}

impl Submit for Captured<'_, '_> {
    fn allocate(&mut self, bytes: usize) -> Result<Memory, BenchError> {
        let memory = self.capture.allocate(bytes)?;
        let address = memory.device_ptr();
        self.held.push(memory);
        Ok(Memory { address, bytes, block: None })
    }

    fn free(&mut self, memory: Memory) -> Result<(), BenchError> {
        let at = self.held.iter().position(|held| held.device_ptr() == memory.address);
        if let Some(at) = at {
            self.capture.free(self.held.swap_remove(at));
        }
        Ok(())
    }

    fn submit(
        &mut self,
        reads: &[Memory],
        writes: &[Memory],
        work: Work<'_>,
    ) -> Result<(), BenchError> {
        for memory in reads {
            self.capture.read(memory);
        }
        for memory in writes {
            self.capture.read_write(&mut { *memory });
        }
        work(self.capture.stream())
    }
}
