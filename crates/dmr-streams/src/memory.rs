//! What a launch can be told that it uses, and how that becomes a kernel argument.

use std::sync::Arc;

use cudarc::driver::DeviceRepr;
use dmr_core::{BlockId, DeviceBlock};

/// Memory that device work can be told to read or write: blocks, buffers, columns.
pub trait TrackedMemory {
    /// Address of the first byte (a `CUdeviceptr`); 0 where there is none.
    fn device_ptr(&self) -> u64;

    /// Who knows of its uses.
    fn origin(&self) -> MemoryOrigin<'_>;
}

/// Where memory comes from, as far as ordering its uses goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryOrigin<'a> {
    /// A block: its resource may track uses.
    Block(BlockId),
    /// Pinned host memory: the use table of its stream pool tracks its uses.
    Pinned(BlockId),
    /// Memory of another owner, whose order is not known here.
    External {
        /// What messages call it.
        name: &'a str,
    },
    /// No bytes at all: nothing to order.
    Empty,
}

impl TrackedMemory for DeviceBlock {
    fn device_ptr(&self) -> u64 {
        self.ptr()
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        MemoryOrigin::Block(self.id())
    }
}

macro_rules! tracked_as_pointee {
    ($($pointer:ty),*) => {$(
        impl<M: TrackedMemory + ?Sized> TrackedMemory for $pointer {
            fn device_ptr(&self) -> u64 {
                (**self).device_ptr()
            }

            fn origin(&self) -> MemoryOrigin<'_> {
                (**self).origin()
            }
        }
    )*};
}

tracked_as_pointee!(&M, &mut M, Arc<M>, Box<M>);

/// A device address as a kernel argument: `launch_builder(..).arg(&argument)`.
///
/// Handed out when memory is recorded, so that what a kernel is given is what its launch declared.
/// `Copy`: it borrows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct KernelArg(u64);

// SAFETY: one 64-bit address, as kernels take pointers.
unsafe impl DeviceRepr for KernelArg {}

impl KernelArg {
    /// The argument for memory that a launch has declared.
    #[must_use]
    pub fn of(memory: &(impl TrackedMemory + ?Sized)) -> Self {
        Self(memory.device_ptr())
    }

    /// The address.
    #[must_use]
    pub const fn device_ptr(self) -> u64 {
        self.0
    }
}
