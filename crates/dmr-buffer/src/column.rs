//! One column of a table: a buffer, or memory of another owner.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use dmr_streams::{MemoryOrigin, TrackedMemory};

use crate::DeviceBuffer;

/// Elements on a device, whoever owns them.
///
/// A strict launch recorder refuses external columns by their name; a permissive one counts them.
#[derive(Debug)]
#[non_exhaustive]
pub enum Column<T: Pod> {
    /// A buffer, whose uses are ordered.
    Owned(DeviceBuffer<T>),
    /// Memory of another owner, whose order is not known here.
    External(ExternalColumn<T>),
}

impl<T: Pod> Column<T> {
    /// How many elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Owned(buffer) => buffer.len(),
            Self::External(external) => external.len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer, if it is one.
    #[must_use]
    pub fn as_buffer(&self) -> Option<&DeviceBuffer<T>> {
        match self {
            Self::Owned(buffer) => Some(buffer),
            Self::External(_) => None,
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

impl<T: Pod> TrackedMemory for Column<T> {
    fn device_ptr(&self) -> u64 {
        match self {
            Self::Owned(buffer) => buffer.device_ptr(),
            Self::External(external) => external.device_ptr(),
        }
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        match self {
            Self::Owned(buffer) => buffer.origin(),
            Self::External(external) => external.origin(),
        }
    }
}

/// Where the elements of another owner are.
///
/// It owns nothing and reads nothing: the address is for kernels, whose launches are `unsafe`.
/// Whoever launches one answers for the memory being there, and for its order.
#[derive(Clone)]
pub struct ExternalColumn<T: Pod> {
    name: Box<str>,
    ptr: u64,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> ExternalColumn<T> {
    /// `len` elements from the device address `ptr` on. Messages call them `name`.
    #[must_use]
    pub fn new(name: impl Into<Box<str>>, ptr: u64, len: usize) -> Self {
        Self { name: name.into(), ptr, len, elements: PhantomData }
    }

    /// What messages call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T: Pod> TrackedMemory for ExternalColumn<T> {
    fn device_ptr(&self) -> u64 {
        self.ptr
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
