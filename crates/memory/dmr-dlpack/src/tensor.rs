//! Tensors: elements in device memory with a type, a shape and strides.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;
use dlpark::DlpackElement;
use dlpark::ffi::DLDataType;
use dmr_buffer::{AllowedAccess, Column, DeviceBuffer};
use dmr_core::ByteRange;
use dmr_streams::{MemoryOrigin, TrackedMemory};

use crate::ImportError;
use crate::layout::Layout;

/// Elements in device memory with a type, a shape and strides: imported, or made of a buffer.
///
/// A launch declares it as it declares a buffer; a use of it is a use of all bytes that it spans.
/// While it is exported, its consumer has the memory, too.
pub struct Tensor {
    pub(crate) bytes: Arc<Column<u8>>,
    pub(crate) layout: Layout,
}

impl Tensor {
    pub(crate) fn new(bytes: Column<u8>, layout: Layout) -> Self {
        Self { bytes: Arc::new(bytes), layout }
    }

    /// Makes a tensor of a buffer, in C order.
    ///
    /// # Errors
    ///
    /// The buffer, if the shape has another number of elements, or no layout.
    pub fn of<T: Pod + DlpackElement>(
        buffer: DeviceBuffer<T>,
        shape: &[i64],
    ) -> Result<Self, Box<DeviceBuffer<T>>> {
        match Layout::contiguous(DLDataType::of::<T>(), shape) {
            Ok(layout) if layout.len() == buffer.len() => {
                let bytes = buffer.cast_into()?;
                Ok(Self::new(Column::Owned(bytes), layout))
            }
            _ => Err(Box::new(buffer)),
        }
    }

    /// Makes a tensor of bytes, in C order.
    ///
    /// # Errors
    ///
    /// As [`Layout::contiguous`]; the buffer is dropped.
    pub fn of_bytes(
        bytes: DeviceBuffer<u8>,
        dtype: DLDataType,
        shape: &[i64],
    ) -> Result<Self, ImportError> {
        let layout = Layout::contiguous(dtype, shape)?;
        if layout.span > bytes.len() {
            return Err(ImportError::field("shape", crate::FieldProblem::Overflow));
        }
        Ok(Self::new(Column::Owned(bytes), layout))
    }

    /// Returns the type, the shape and the strides.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the bytes that the elements span, to read them.
    #[must_use]
    pub fn bytes(&self) -> &Column<u8> {
        &self.bytes
    }

    /// Returns the address of the first element: the one whose indices are 0. 0 without elements.
    #[must_use]
    pub fn first_element(&self) -> u64 {
        match self.bytes.device_ptr() {
            0 => 0,
            lowest => lowest + self.layout.first as u64,
        }
    }

    /// Returns the access that the owner of the memory allows.
    #[must_use]
    pub fn access(&self) -> AllowedAccess {
        match self.bytes.is_read_only() {
            true => AllowedAccess::ReadOnly,
            false => AllowedAccess::ReadWrite,
        }
    }

    /// Returns the elements as a column.
    ///
    /// # Errors
    ///
    /// The tensor, if it is of another type, has gaps or another order than C's, or is exported.
    pub fn into_column<T: Pod + DlpackElement>(self) -> Result<Column<T>, Self> {
        let Self { bytes, layout } = self;
        if layout.dtype != DLDataType::of::<T>() || !layout.is_contiguous() {
            return Err(Self { bytes, layout });
        }
        let bytes = match Arc::try_unwrap(bytes) {
            Ok(bytes) => bytes,
            Err(bytes) => return Err(Self { bytes, layout }),
        };
        bytes.cast_into().map_err(|bytes| Self::new(*bytes, layout))
    }
}

impl TrackedMemory for Tensor {
    fn device_ptr(&self) -> u64 {
        self.bytes.device_ptr()
    }

    fn size_in_bytes(&self) -> usize {
        self.bytes.size_in_bytes()
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        self.bytes.origin()
    }

    fn byte_range(&self) -> ByteRange {
        self.bytes.byte_range()
    }

    fn is_read_only(&self) -> bool {
        self.bytes.is_read_only()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("layout", &self.layout)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
