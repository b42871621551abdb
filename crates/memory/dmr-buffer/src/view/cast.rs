//! Views of the same bytes as elements of another type.

use std::any::type_name;

use bytemuck::Pod;

use super::{View, ViewMut, ViewedMemory};
use crate::BufferError;

impl<'a, T: Pod, M: ViewedMemory> View<'a, T, M> {
    /// Returns a view of the same bytes as elements of type `U`: the bytes of a file as numbers, or
    /// numbers as the bytes of a message. A use of it is a use of these bytes.
    ///
    /// ```
    /// # use dmr_buffer::{BufferError, DeviceBuffer, DeviceView};
    /// /// The second column of a page: 1,000 prices, from byte 4,000 on.
    /// fn prices(page: &DeviceBuffer<u8>) -> Result<DeviceView<'_, f32>, BufferError> {
    ///     page.slice(4_000..8_000)?.cast()
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Cast`](BufferError::Cast) unless the view is a whole number of such elements and begins at
    /// an address that is aligned for them. A block begins at a multiple of 256 bytes.
    pub fn cast<U: Pod>(self) -> Result<View<'a, U, M>, BufferError> {
        let bytes = self.size_in_bytes();
        let element_bytes = size_of::<U>();
        let len = match element_bytes {
            // As many elements of no bytes.
            0 if size_of::<T>() == 0 => Some(self.len),
            0 => (bytes == 0).then_some(0),
            _ => bytes.is_multiple_of(element_bytes).then_some(bytes / element_bytes),
        };
        let is_aligned = self.ptr.is_multiple_of(align_of::<U>() as u64);
        match len {
            Some(len) if is_aligned => {
                let is_whole = self.is_whole;
                Ok(View { is_whole, ..View::new(self.owner, self.memory, self.ptr, len) })
            }
            _ => Err(BufferError::Cast {
                from: type_name::<T>(),
                to: type_name::<U>(),
                bytes,
                ptr: self.ptr,
                element_bytes,
                alignment: align_of::<U>(),
            }),
        }
    }
}

impl<'a, T: Pod, M: ViewedMemory> ViewMut<'a, T, M> {
    /// Returns a mutable view of the same bytes as elements of type `U`, as [`View::cast`] does. To
    /// use this view again afterwards, cast `view.slice_mut(..)?`.
    ///
    /// # Errors
    ///
    /// As [`View::cast`].
    pub fn cast<U: Pod>(self) -> Result<ViewMut<'a, U, M>, BufferError> {
        self.view.cast().map(ViewMut::new)
    }
}
