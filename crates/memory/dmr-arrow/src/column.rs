//! Columns: a type, rows, buffers in device memory, and the columns below.

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use dmr_buffer::{BufferError, Column, DeviceBuffer, DeviceView, ExternalColumn, Pod};
use dmr_launch::LaunchRecorder;
use dmr_streams::{MemoryOrigin, TrackedMemory};

use crate::ColumnError;
use crate::abi::{ARROW_DEVICE_CUDA, ARROW_FLAG_NULLABLE};
use crate::error::Path;
use crate::format::{Element, Format, Layout};
use crate::parts::{Checked, ColumnParts, PARTS};
use crate::shape::{Child, Rows};

/// A column of Arrow in device memory, of any type, with its buffers and the columns below it.
///
/// Imported from another library, or made of buffers. Either way its memory is tracked: a launch
/// declares the views of its buffers, on any stream, and is ordered. Nothing writes a column, so
/// clones of it share the buffers, and so do exports of it.
#[derive(Clone)]
pub struct ArrowColumn {
    pub(crate) head: Head,
    pub(crate) rows: Rows,
    pub(crate) buffers: Vec<Option<ColumnBuffer>>,
    pub(crate) children: Vec<ArrowColumn>,
    pub(crate) dictionary: Option<Box<ArrowColumn>>,
}

/// The type of a column, and what else its schema has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) format: Format,
    pub(crate) name: String,
    pub(crate) flags: i64,
    /// As in a schema; empty if there is none.
    pub(crate) metadata: Vec<u8>,
}

/// A buffer of a column, shared by the columns that have it.
#[derive(Clone)]
pub struct ColumnBuffer {
    memory: Arc<Column<u8>>,
    start: usize,
    bytes: usize,
    pub(crate) device_type: i32,
}

/// A type of the elements of columns.
pub trait Primitive: Pod + Send + Sync {
    /// The elements of columns that have views of this type.
    const ELEMENT: Element;
    /// The format string of a column that is made of such elements.
    const FORMAT: &'static str;
}

macro_rules! primitive {
    ($($type:ty, $element:expr, $format:literal;)*) => {$(
        impl Primitive for $type {
            const ELEMENT: Element = $element;
            const FORMAT: &'static str = $format;
        }
    )*};
}

primitive! {
    i8, Element::Int(8), "c";
    i16, Element::Int(16), "s";
    i32, Element::Int(32), "i";
    i64, Element::Int(64), "l";
    i128, Element::Int(128), "d:38,0";
    u8, Element::UInt(8), "C";
    u16, Element::UInt(16), "S";
    u32, Element::UInt(32), "I";
    u64, Element::UInt(64), "L";
    f32, Element::Float(32), "f";
    f64, Element::Float(64), "g";
}

impl ArrowColumn {
    /// Makes a column of numbers without nulls.
    #[must_use]
    pub fn of<T: Primitive>(name: &str, values: DeviceBuffer<T>) -> Self {
        let rows = Rows { length: values.len(), offset: 0, null_count: Some(0) };
        let head = Head {
            // Each format string of `primitive!` has a layout.
            format: Format::of_primitive::<T>(),
            name: name.replace('\0', ""),
            flags: 0,
            metadata: Vec::new(),
        };
        let values = ColumnBuffer::from(values);
        let values = (values.bytes > 0).then_some(values);
        Self { head, rows, buffers: vec![None, values], children: Vec::new(), dictionary: None }
    }

    /// Makes a column of its parts.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ColumnError::Invalid), with the name of the part: a format string that is none,
    /// a number of buffers or children that the type does not have, a buffer that is too short for
    /// the rows, a child with too few rows, a null count above the rows, a name with a NUL, more
    /// than 64 columns in one another. The content of the buffers is not read: offsets and indices
    /// are the caller's word.
    pub fn new(parts: ColumnParts) -> Result<Self, ColumnError> {
        let bytes = |it: &Option<ColumnBuffer>| it.as_ref().map(|it| it.bytes);
        let sizes: Vec<_> = parts.buffers.iter().map(bytes).collect();
        let Checked { format, rows } = parts.checked(&sizes)?;
        let ColumnParts { name, flags, buffers, children, dictionary, .. } = parts;
        let head = Head { format, name, flags, metadata: Vec::new() };
        Ok(Self { head, rows, buffers, children, dictionary })
    }

    /// Adds a bit for each row, from the lowest of the first byte on: 0 for a null.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_validity(
        self,
        validity: DeviceBuffer<u8>,
        null_count: Option<usize>,
    ) -> Result<Self, ColumnError> {
        let mut parts = self.into_parts();
        if let Some(first) = parts.buffers.first_mut() {
            *first = Some(ColumnBuffer::from(validity));
        }
        parts.null_count = null_count;
        parts.flags |= ARROW_FLAG_NULLABLE;
        Self::new(parts)
    }

    /// Returns the rows from `offset` on, `length` of them, of the same buffers.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ColumnError::Invalid) if there are not as many rows.
    pub fn slice(&self, offset: usize, length: usize) -> Result<Self, ColumnError> {
        let rows = self.rows;
        if offset.checked_add(length).is_none_or(|end| end > rows.length) {
            let problem = format!("is {offset}, and {length} rows from there on are not there");
            return Err(Path::Root.invalid(PARTS, "offset", problem));
        }
        let null_count = match rows.null_count {
            Some(0) => Some(0),
            count if length == rows.length => count,
            _ => None,
        };
        let rows = Rows { length, offset: rows.offset + offset, null_count };
        Ok(Self { rows, ..self.clone() })
    }

    fn into_parts(self) -> ColumnParts {
        ColumnParts {
            format: self.head.format.as_str().to_owned(),
            name: self.head.name,
            flags: self.head.flags,
            length: self.rows.length,
            offset: self.rows.offset,
            null_count: self.rows.null_count,
            buffers: self.buffers,
            children: self.children,
            dictionary: self.dictionary,
        }
    }

    /// Returns the number of columns below, one in another.
    pub(crate) fn depth(&self) -> usize {
        let below = self.children.iter().chain(self.dictionary.as_deref());
        below.map(|below| 1 + below.depth()).max().unwrap_or(0)
    }

    pub(crate) fn as_child(&self) -> Child<'_> {
        Child { format: &self.head.format, rows: self.rows, children: self.children.len() }
    }

    /// Returns the type.
    #[must_use]
    pub fn format(&self) -> &Format {
        &self.head.format
    }

    /// Returns the name; empty for none.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.head.name
    }

    /// Returns the flags of the schema.
    #[must_use]
    pub fn flags(&self) -> i64 {
        self.head.flags
    }

    /// Returns the metadata, as in a schema; empty if there is none.
    #[must_use]
    pub fn metadata(&self) -> &[u8] {
        &self.head.metadata
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.length
    }

    /// Returns whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.length == 0
    }

    /// Returns the number of rows in the buffers before the first one.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.rows.offset
    }

    /// Returns the number of null rows; `None` if it is not known.
    #[must_use]
    pub fn null_count(&self) -> Option<usize> {
        self.rows.null_count
    }

    /// Returns the buffers, in the order of the specification, without the sizes of the data of
    /// binary views.
    #[must_use]
    pub fn buffers(&self) -> &[Option<ColumnBuffer>] {
        &self.buffers
    }

    /// Returns the columns below.
    #[must_use]
    pub fn children(&self) -> &[Self] {
        &self.children
    }

    /// Returns the values, if this column has their indices.
    #[must_use]
    pub fn dictionary(&self) -> Option<&Self> {
        self.dictionary.as_deref()
    }

    /// Returns the bits that are 0 for null rows, if there are any, as bytes. The bit of the first
    /// row is [`offset`](Self::offset).
    ///
    /// # Errors
    ///
    /// [`Buffer`](ColumnError::Buffer).
    pub fn validity(&self) -> Result<Option<DeviceView<'_, u8>>, ColumnError> {
        let has_none =
            matches!(self.head.format.layout(), Layout::Union { .. } | Layout::RunEndEncoded);
        match self.buffers.first() {
            Some(Some(buffer)) if !has_none => Ok(Some(buffer.view()?)),
            _ => Ok(None),
        }
    }

    /// Returns the elements of the rows, nulls included; `None` without rows.
    ///
    /// # Errors
    ///
    /// [`OtherType`](ColumnError::OtherType) if the column has no elements of this type;
    /// [`Buffer`](ColumnError::Buffer) if its address is not aligned for them.
    pub fn values<T: Primitive>(&self) -> Result<Option<DeviceView<'_, T>>, ColumnError> {
        match self.head.format.layout() {
            Layout::Fixed { element, .. } if *element == T::ELEMENT => {}
            _ => {
                let format = self.head.format.as_str().to_owned();
                return Err(ColumnError::OtherType { format, requested: type_name::<T>() });
            }
        }
        let Some(Some(buffer)) = self.buffers.get(1).filter(|_| !self.is_empty()) else {
            return Ok(None);
        };
        let width = size_of::<T>();
        let range = self.rows.offset * width..self.rows.end() * width;
        Ok(Some(buffer.view()?.slice(range)?.cast()?))
    }

    /// Declares that a launch reads all buffers of this column and of those below.
    pub fn record_reads(&self, launch: &mut LaunchRecorder) {
        self.each_buffer(&mut |buffer| {
            launch.read(buffer);
        });
    }

    /// Calls `each` for all buffers of this column and of those below.
    pub(crate) fn each_buffer<'c>(&'c self, each: &mut impl FnMut(&'c ColumnBuffer)) {
        self.buffers.iter().flatten().for_each(&mut *each);
        self.children.iter().for_each(|child| child.each_buffer(each));
        if let Some(dictionary) = &self.dictionary {
            dictionary.each_buffer(each);
        }
    }
}

impl ColumnBuffer {
    pub(crate) fn new(
        memory: Arc<Column<u8>>,
        start: usize,
        bytes: usize,
        device_type: i32,
    ) -> Self {
        Self { memory, start, bytes, device_type }
    }

    /// Returns a view of the bytes.
    ///
    /// # Errors
    ///
    /// [`NotAdopted`](BufferError::NotAdopted) for an external column.
    pub fn view(&self) -> Result<DeviceView<'_, u8>, BufferError> {
        let buffer = self.memory.as_buffer().ok_or(BufferError::NotAdopted)?;
        buffer.slice(self.start..self.start + self.bytes)
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size_in_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the device address; 0 for no bytes.
    #[must_use]
    pub fn device_ptr(&self) -> u64 {
        self.view().map_or(0, |view| view.device_ptr())
    }
}

/// A launch may declare that it reads the buffer.
impl TrackedMemory for ColumnBuffer {
    fn device_ptr(&self) -> u64 {
        self.device_ptr()
    }

    fn size_in_bytes(&self) -> usize {
        self.bytes
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        if self.bytes == 0 { MemoryOrigin::Empty } else { self.memory.origin() }
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

impl From<Column<u8>> for ColumnBuffer {
    fn from(memory: Column<u8>) -> Self {
        let bytes = memory.len();
        Self { memory: Arc::new(memory), start: 0, bytes, device_type: ARROW_DEVICE_CUDA }
    }
}

impl<T: Pod> From<DeviceBuffer<T>> for ColumnBuffer {
    fn from(buffer: DeviceBuffer<T>) -> Self {
        match buffer.cast_into::<u8>() {
            Ok(bytes) => Column::from(bytes).into(),
            // Any elements are bytes.
            Err(_) => Column::from(ExternalColumn::new("bytes", 0, 0)).into(),
        }
    }
}

impl fmt::Debug for ColumnBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ColumnBuffer")
            .field("ptr", &format_args!("{:#x}", self.device_ptr()))
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ArrowColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrowColumn")
            .field("name", &self.head.name)
            .field("format", &self.head.format.as_str())
            .field("len", &self.rows.length)
            .field("offset", &self.rows.offset)
            .field("null_count", &self.rows.null_count)
            .field("buffers", &self.buffers)
            .field("children", &self.children)
            .field("dictionary", &self.dictionary)
            .finish()
    }
}
