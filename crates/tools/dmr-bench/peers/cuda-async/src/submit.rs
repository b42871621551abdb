//! Where the intermediate results of a step are: in buffers that were made before the capture, in
//! memory nodes of the graph, or in owned memory that was allocated in the capture.

use std::sync::Arc;

use cuda_async::device_box::DeviceBox;
use cuda_async::device_operation::{DeviceOp, ExecutionContext, value, with_context};
use cuda_async::error::DeviceError;
use cuda_core::{RawDeviceBuffer, Stream};

use crate::model::{Model, State};
use crate::operation::{Memory, Operation, no_future};

/// A way to submit the operations of a step.
pub trait Submit {
    /// Allocates memory for an intermediate result.
    fn allocate(&mut self, bytes: usize) -> Result<Memory, DeviceError>;

    /// Frees memory, after all that was submitted.
    fn free(&mut self, memory: Memory) -> Result<(), DeviceError>;

    /// Submits an operation.
    fn submit(&mut self, operation: Operation) -> Result<(), DeviceError>;
}

/// Allocates a buffer as cuTile does for its tensors: from the thread's pool, on a stream.
pub fn allocate(stream: &Arc<Stream>, bytes: usize) -> Result<RawDeviceBuffer, DeviceError> {
    let allocated =
        with_context(move |context: &ExecutionContext| value(allocate_in(context, bytes)));
    Ok(allocated.sync_on(stream)??.storage().clone())
}

fn allocate_in(context: &ExecutionContext, bytes: usize) -> Result<DeviceBox<[u8]>, DeviceError> {
    // SAFETY: the stream orders the allocation before its uses.
    let address = unsafe { context.alloc_async(bytes) }?;
    let stream = Arc::clone(context.get_cuda_stream());
    // SAFETY: it was just allocated, of this size on this stream.
    Ok(unsafe { DeviceBox::from_raw_parts(address, bytes, stream) })
}

/// The use of buffers of results that a step needs no longer.
#[derive(Clone, Copy, PartialEq)]
pub enum Reuse {
    /// Each result has a buffer of its own.
    Never,
    /// A result takes the smallest buffer that is free and large enough.
    Freed,
}

/// The buffers of the intermediate results.
pub struct Arena {
    stream: Arc<Stream>,
    reuse: Reuse,
    free: Vec<RawDeviceBuffer>,
    used: Vec<RawDeviceBuffer>,
}

impl Arena {
    /// Makes an arena without buffers.
    pub fn new(stream: &Arc<Stream>, reuse: Reuse) -> Self {
        Self { stream: Arc::clone(stream), reuse, free: Vec::new(), used: Vec::new() }
    }

    /// Returns the size of all buffers.
    pub fn bytes(&self) -> usize {
        self.free.iter().chain(&self.used).map(RawDeviceBuffer::len_bytes).sum()
    }
}

/// Collects the operations of a step, whose results are in an arena.
pub struct Plan<'a> {
    arena: &'a mut Arena,
    pub operations: Vec<Operation>,
}

impl<'a> Plan<'a> {
    /// Makes a plan without operations.
    pub fn new(arena: &'a mut Arena) -> Self {
        Self { arena, operations: Vec::new() }
    }
}

impl Submit for Plan<'_> {
    fn allocate(&mut self, bytes: usize) -> Result<Memory, DeviceError> {
        let Arena { stream, reuse, free, used } = &mut *self.arena;
        let fitting = free.iter().enumerate().filter(|(_, buffer)| buffer.len_bytes() >= bytes);
        let smallest = fitting.min_by_key(|(_, buffer)| buffer.len_bytes()).map(|(at, _)| at);
        let buffer = match smallest {
            Some(at) if *reuse == Reuse::Freed => free.swap_remove(at),
            _ => allocate(stream, bytes)?,
        };
        let memory = Memory::of(buffer.slice_bytes(0, bytes)?);
        used.push(buffer);
        Ok(memory)
    }

    fn free(&mut self, memory: Memory) -> Result<(), DeviceError> {
        let Arena { free, used, .. } = &mut *self.arena;
        if let Some(at) = used.iter().position(|buffer| buffer.cu_deviceptr() == memory.address) {
            free.push(used.swap_remove(at));
        }
        Ok(())
    }

    fn submit(&mut self, operation: Operation) -> Result<(), DeviceError> {
        self.operations.push(operation);
        Ok(())
    }
}

/// A step whose results are memory nodes of the captured graph.
pub struct Nodes<'m> {
    pub model: &'m Model,
    pub state: &'m State,
}

no_future!(Nodes<'_>);

impl DeviceOp for Nodes<'_> {
    type Output = ();

    unsafe fn execute(self, context: &ExecutionContext) -> Result<(), DeviceError> {
        self.model.step(self.state, &mut InNodes(context))
    }
}

struct InNodes<'c>(&'c ExecutionContext);

impl Submit for InNodes<'_> {
    fn allocate(&mut self, bytes: usize) -> Result<Memory, DeviceError> {
        // SAFETY: freed on the same stream.
        let address = unsafe { self.0.alloc_async(bytes) }?;
        Ok(Memory { address, bytes, storage: None })
    }

    fn free(&mut self, memory: Memory) -> Result<(), DeviceError> {
        // SAFETY: allocated on this stream, which has all uses so far.
        Ok(unsafe { cuda_core::free_async(memory.address, self.0.get_cuda_stream()) }?)
    }

    fn submit(&mut self, operation: Operation) -> Result<(), DeviceError> {
        // SAFETY: the stream orders the operations.
        unsafe { operation.execute(self.0) }
    }
}

/// A step whose results are cuda-async's owned memory.
pub struct Boxes<'m> {
    pub model: &'m Model,
    pub state: &'m State,
}

no_future!(Boxes<'_>);

impl DeviceOp for Boxes<'_> {
    type Output = ();

    unsafe fn execute(self, context: &ExecutionContext) -> Result<(), DeviceError> {
        self.model.step(self.state, &mut InBoxes(context))
    }
}

struct InBoxes<'c>(&'c ExecutionContext);

impl Submit for InBoxes<'_> {
    fn allocate(&mut self, bytes: usize) -> Result<Memory, DeviceError> {
        Ok(Memory::of(allocate_in(self.0, bytes)?.storage().clone()))
    }

    fn free(&mut self, memory: Memory) -> Result<(), DeviceError> {
        drop(memory);
        Ok(())
    }

    fn submit(&mut self, operation: Operation) -> Result<(), DeviceError> {
        // SAFETY: the stream orders the operations.
        unsafe { operation.execute(self.0) }
    }
}
