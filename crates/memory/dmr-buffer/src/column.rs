//! A column of a table: a buffer, adopted memory of another owner, or its address alone.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use dmr_core::StreamId;
use dmr_streams::{MemoryOrigin, TrackedMemory};

use crate::{AdoptedColumn, BufferError, DeviceBuffer, DeviceViewMut};

/// Elements in device memory: a buffer, adopted memory of another owner, or an address with
/// an unknown owner.
///
/// A strict launch refuses external columns by their name, because the order of their uses is
/// unknown; a permissive one counts them. [Adopt](AdoptedColumn::adopt) such memory with the stream
/// or the event of its producer.
#[derive(Debug)]
#[non_exhaustive]
pub enum Column<T: Pod> {
    /// A buffer, whose uses are ordered.
    Owned(DeviceBuffer<T>),
    /// Memory of another owner that was adopted, whose uses are ordered.
    Adopted(AdoptedColumn<T>),
    /// Memory of another owner, whose uses are not tracked.
    External(ExternalColumn<T>),
}

impl<T: Pod> Column<T> {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Owned(buffer) => buffer.len(),
            Self::Adopted(adopted) => adopted.len(),
            Self::External(external) => external.len,
        }
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements as a buffer, to read them; `None` for memory that was not adopted.
    #[must_use]
    pub fn as_buffer(&self) -> Option<&DeviceBuffer<T>> {
        match self {
            Self::Owned(buffer) => Some(buffer),
            Self::Adopted(adopted) => Some(adopted.as_buffer()),
            Self::External(_) => None,
        }
    }

    /// Makes a column of another type of elements of the same memory.
    ///
    /// # Errors
    ///
    /// The column, unchanged, if the address or the size in bytes does not fit that type, and if it
    /// is external.
    pub fn cast_into<U: Pod>(self) -> Result<Column<U>, Box<Self>> {
        match self {
            Self::Owned(buffer) => {
                buffer.cast_into().map(Column::Owned).map_err(|it| Box::new(Self::Owned(*it)))
            }
            Self::Adopted(column) => {
                column.cast_into().map(Column::Adopted).map_err(|it| Box::new(Self::Adopted(*it)))
            }
            Self::External(_) => Err(Box::new(self)),
        }
    }

    /// Copies all elements to the host, as [`DeviceBuffer::to_host`] does.
    ///
    /// # Errors
    ///
    /// [`NotAdopted`](BufferError::NotAdopted) for an external column; as
    /// [`DeviceBuffer::to_host`].
    pub fn to_host(&self, stream: impl Into<StreamId>) -> Result<Vec<T>, BufferError> {
        self.as_buffer().ok_or(BufferError::NotAdopted)?.to_host(stream)
    }

    /// Returns a mutable view of the elements.
    ///
    /// # Errors
    ///
    /// [`ReadOnly`](BufferError::ReadOnly) where the owner forbids to write;
    /// [`NotAdopted`](BufferError::NotAdopted) for an external column.
    pub fn view_mut(&mut self) -> Result<DeviceViewMut<'_, T>, BufferError> {
        match self {
            Self::Owned(buffer) => Ok(buffer.view_mut()),
            Self::Adopted(adopted) => adopted.view_mut(),
            Self::External(_) => Err(BufferError::NotAdopted),
        }
    }

    fn as_tracked(&self) -> &dyn TrackedMemory {
        match self {
            Self::Owned(buffer) => buffer,
            Self::Adopted(adopted) => adopted,
            Self::External(external) => external,
        }
    }
}

impl<T: Pod> From<DeviceBuffer<T>> for Column<T> {
    fn from(buffer: DeviceBuffer<T>) -> Self {
        Self::Owned(buffer)
    }
}

impl<T: Pod> From<AdoptedColumn<T>> for Column<T> {
    fn from(adopted: AdoptedColumn<T>) -> Self {
        Self::Adopted(adopted)
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
