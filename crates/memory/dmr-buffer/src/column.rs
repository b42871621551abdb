//! A column of a table: a buffer, or memory of another owner.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use dmr_streams::{MemoryOrigin, TrackedMemory};

use crate::DeviceBuffer;

/// Elements in device memory: a buffer, or memory of another owner.
///
/// A strict launch recorder refuses external columns by their name; a permissive one counts them.
#[derive(Debug)]
#[non_exhaustive]
pub enum Column<T: Pod> {
    /// A buffer, whose uses are ordered.
    Owned(DeviceBuffer<T>),
    /// Memory of another owner, whose uses are not tracked.
    External(ExternalColumn<T>),
}

impl<T: Pod> Column<T> {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Owned(buffer) => buffer.len(),
            Self::External(external) => external.len,
        }
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the buffer; `None` for memory of another owner.
    #[must_use]
    pub fn as_buffer(&self) -> Option<&DeviceBuffer<T>> {
        match self {
            Self::Owned(buffer) => Some(buffer),
            Self::External(_) => None,
        }
    }

    fn as_tracked(&self) -> &dyn TrackedMemory {
        match self {
            Self::Owned(buffer) => buffer,
            Self::External(external) => external,
        }
    }
}

impl<T: Pod> From<DeviceBuffer<T>> for Column<T> {
    fn from(buffer: DeviceBuffer<T>) -> Self {
        Self::Owned(buffer)
    }
}

impl<T: Pod> From<ExternalColumn<T>> for Column<T> {
    fn from(external: ExternalColumn<T>) -> Self {
        Self::External(external)
    }
}

tracked_as!([T: Pod] Column<T>, column => column.as_tracked());

/// The address of elements of another owner.
///
/// It does not own or read the memory: the address is for kernels, whose launches are `unsafe`. The
/// launch's caller makes sure that the memory is allocated and its uses are ordered.
#[derive(Clone)]
pub struct ExternalColumn<T: Pod> {
    name: Box<str>,
    ptr: u64,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> ExternalColumn<T> {
    /// Describes `len` elements at the device address `ptr`, with a name for messages.
    #[must_use]
    pub fn new(name: impl Into<Box<str>>, ptr: u64, len: usize) -> Self {
        Self { name: name.into(), ptr, len, elements: PhantomData }
    }

    /// Returns its name in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T: Pod> TrackedMemory for ExternalColumn<T> {
    fn device_ptr(&self) -> u64 {
        self.ptr
    }

    fn size_in_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        if self.len == 0 {
            MemoryOrigin::Empty
        } else {
            MemoryOrigin::External { name: &self.name }
        }
    }
}

impl<T: Pod> fmt::Debug for ExternalColumn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalColumn")
            .field("name", &self.name)
            .field("ptr", &format_args!("{:#x}", self.ptr))
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
