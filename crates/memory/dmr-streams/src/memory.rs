//! Memory that a launch can declare, and kernel arguments made of it.

use std::sync::Arc;

use dmr_core::{BlockId, ByteRange, DeviceBlock};

/// Memory that a launch can declare as read or written: blocks, buffers, columns.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not memory that a launch can declare",
    label = "not a buffer, a view, a block or a column",
    note = "copy host memory to a `DeviceBuffer` with `from_host`, make a buffer of a `CudaSlice` with `adopt`, or a column of memory of another library with `AdoptedColumn::adopt`"
)]
pub trait TrackedMemory {
    /// Returns the address of the first byte (a `CUdeviceptr`); 0 for memory of no bytes.
    fn device_ptr(&self) -> u64;

    /// Returns the number of bytes from [`device_ptr`](Self::device_ptr) on.
    fn size_in_bytes(&self) -> usize;

    /// Returns where its uses are tracked.
    fn origin(&self) -> MemoryOrigin<'_>;

    /// Returns the bytes of its block that a use of it reads or writes:
    /// [`ByteRange::WHOLE`] for memory that covers its block, otherwise its own bytes.
    ///
    /// Uses of different bytes of one block neither conflict nor wait for each other.
    fn byte_range(&self) -> ByteRange {
        ByteRange::new(self.device_ptr(), self.size_in_bytes())
    }

    /// Returns whether its owner forbids to write it: a launch that declares a write of it is
    /// refused.
    fn is_read_only(&self) -> bool {
        false
    }
}

/// The origin of memory, by which its uses are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryOrigin<'a> {
    /// A block: its resource may track uses.
    Block(BlockId),
    /// Pinned host memory: the use table of its stream pool tracks its uses.
    Pinned(BlockId),
    /// Memory of another owner, whose uses are not tracked here.
    External {
        /// Its name in messages.
        name: &'a str,
    },
    /// Memory of no bytes, whose uses need no order.
    Empty,
}

impl TrackedMemory for DeviceBlock {
    fn device_ptr(&self) -> u64 {
        self.ptr()
    }

    fn size_in_bytes(&self) -> usize {
        self.bytes()
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        MemoryOrigin::Block(self.id())
    }

    fn byte_range(&self) -> ByteRange {
        ByteRange::WHOLE
    }
}

/// Memory of elements that a launch can make views of, for cudarc's wrappers.
///
/// # Safety
///
/// - [`device_ptr`](TrackedMemory::device_ptr) is the address of [`len`](Self::len) elements, and
///   any bytes are a value of [`Element`](Self::Element).
/// - They stay allocated, and the host does not access them, while this is borrowed and until every
///   use that was recorded for [`origin`](TrackedMemory::origin) is done.
/// - If the origin is [`Pinned`](MemoryOrigin::Pinned), the address is also the host's.
#[allow(clippy::len_without_is_empty, reason = "implementors have an `is_empty` of their own")]
pub unsafe trait TypedMemory: TrackedMemory {
    /// The type of the elements.
    type Element: 'static;

    /// Returns the number of elements.
    fn len(&self) -> usize;
}

/// Memory that a launch may write through a view.
///
/// # Safety
///
/// As [`TypedMemory`], and a mutable reference to it excludes every other way to the elements.
pub unsafe trait TypedMemoryMut: TypedMemory {}

// SAFETY: a block owns its bytes until it is deallocated, which its resource orders after its
// recorded uses.
unsafe impl TypedMemory for DeviceBlock {
    type Element = u8;

    fn len(&self) -> usize {
        self.bytes()
    }
}

// SAFETY: a block cannot be cloned or copied.
unsafe impl TypedMemoryMut for DeviceBlock {}

// SAFETY: the pointee's.
unsafe impl<M: TypedMemory + ?Sized> TypedMemory for &M {
    type Element = M::Element;

    fn len(&self) -> usize {
        (**self).len()
    }
}

macro_rules! tracked_as_pointee {
    ($($pointer:ty),*) => {$(
        impl<M: TrackedMemory + ?Sized> TrackedMemory for $pointer {
            fn device_ptr(&self) -> u64 {
                (**self).device_ptr()
            }

            fn size_in_bytes(&self) -> usize {
                (**self).size_in_bytes()
            }

            fn origin(&self) -> MemoryOrigin<'_> {
                (**self).origin()
            }

            fn byte_range(&self) -> ByteRange {
                (**self).byte_range()
            }

            fn is_read_only(&self) -> bool {
                (**self).is_read_only()
            }
        }
    )*};
}

tracked_as_pointee!(&M, &mut M, Arc<M>, Box<M>);

/// A device address as a kernel argument: `launch_builder(..).arg(&argument)`.
///
/// Returned when memory is recorded, so that a kernel uses what its launch has declared. It is
/// `Copy` and borrows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct KernelArg(u64);

impl KernelArg {
    /// Returns the argument for memory that a launch has declared.
    #[must_use]
    pub fn of(memory: &(impl TrackedMemory + ?Sized)) -> Self {
        Self(memory.device_ptr())
    }

    /// Returns the address.
    #[must_use]
    pub const fn device_ptr(self) -> u64 {
        self.0
    }
}
