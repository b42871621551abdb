//! A buffer that may be spilled, and the guards that keep it on the device.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use dmr_buffer::{BufferError, DeviceBuffer, Pod};
use dmr_core::{ByteRange, ResourceError, StreamId};
use dmr_streams::{MemoryOrigin, TrackedMemory};

use crate::entry::{Entry, Place};
use crate::spill::Registered;
use crate::{Spill, SpillError};

/// A buffer that is moved to the host when memory runs out, and back when a guard is requested.
/// Made by [`Spill::insert`].
///
/// Dropping it frees the buffer, wherever it is, and does not wait.
pub struct Spillable<T: Pod> {
    entry: Arc<Entry<T>>,
    registered: Registered,
}

impl<T: Pod> Spillable<T> {
    pub(crate) fn new(entry: Arc<Entry<T>>, registered: Registered) -> Self {
        Self { entry, registered }
    }

    /// Returns a guard, which keeps the buffer on the device while it lives. If the buffer is on
    /// the host, it is restored: memory is allocated with `stream` as its home stream, which may
    /// spill others, and filled by a recorded copy there. If it is on the device, `stream` is not
    /// used.
    ///
    /// Does not wait for the device, unless the allocation does. If another thread is moving the
    /// buffer, this waits until that thread has submitted the copy.
    ///
    /// A guard needs to live until the launch that uses the buffer is finished: from then on a
    /// spill waits for the recorded use.
    ///
    /// # Errors
    ///
    /// [`NoRoom`](SpillError::NoRoom); [`Unavailable`](SpillError::Unavailable);
    /// [`Buffer`](SpillError::Buffer): stream and driver errors. The buffer is where it was.
    pub fn on_device(&self, stream: impl Into<StreamId>) -> Result<OnDevice<'_, T>, SpillError> {
        self.spill().check_process()?;
        let shared = self.entry.share(stream.into(), self.spill().restored());
        let buffer = shared.map_err(|error| self.refused(error))?;
        Ok(OnDevice { buffer, of: self })
    }

    /// Returns the exclusive guard, through which the buffer can be written and grown. Restores the
    /// buffer as [`on_device`](Self::on_device) does.
    ///
    /// # Errors
    ///
    /// As [`on_device`](Self::on_device).
    pub fn on_device_mut(
        &mut self,
        stream: impl Into<StreamId>,
    ) -> Result<OnDeviceMut<'_, T>, SpillError> {
        self.spill().check_process()?;
        let lent = self.entry.lend(stream.into(), self.spill().restored());
        let buffer = lent.map_err(|error| self.refused(error))?;
        Ok(OnDeviceMut { buffer: Some(buffer), of: self })
    }

    /// Returns the registry.
    #[must_use]
    pub fn spill(&self) -> &Spill {
        self.registered.spill()
    }

    /// Returns whether the buffer is on the host now. Another thread may move it at any time.
    #[must_use]
    pub fn is_spilled(&self) -> bool {
        self.spill().check_process().is_ok() && matches!(self.entry.place(), Place::OnHost(_))
    }

    /// Adds the state of the registry to an error of an allocation that found no room.
    fn refused(&self, error: SpillError) -> SpillError {
        let SpillError::Buffer(BufferError::Resource(source)) = error else { return error };
        if !is_no_room(&source) {
            return SpillError::resource(source);
        }
        let (Place::OnHost(bytes)
        | Place::Cold(bytes)
        | Place::InUse(bytes)
        | Place::Spilling(bytes)) = self.entry.place();
        SpillError::NoRoom { bytes, source, stats: Box::new(self.spill().stats()) }
    }
}

const fn is_no_room(error: &ResourceError) -> bool {
    matches!(error, ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. })
}

impl<T: Pod> Drop for Spillable<T> {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread of the parent.
        if self.spill().check_process().is_ok() {
            self.entry.close();
        }
    }
}

impl<T: Pod> fmt::Debug for Spillable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.spill().check_process().is_ok().then(|| self.entry.place());
        f.debug_struct("Spillable")
            .field("element", &std::any::type_name::<T>())
            .field("place", &place)
            .finish_non_exhaustive()
    }
}

/// A shared guard of a [`Spillable`], which keeps it on the device. A leaked guard keeps it there
/// for ever.
pub struct OnDevice<'a, T: Pod> {
    buffer: Arc<DeviceBuffer<T>>,
    of: &'a Spillable<T>,
}

impl<T: Pod> OnDevice<'_, T> {
    /// Keeps the buffer on the device without borrowing the [`Spillable`].
    #[must_use]
    pub fn keep(self) -> KeptOnDevice<T> {
        KeptOnDevice::new(Arc::clone(&self.buffer), self.of)
    }
}

impl<T: Pod> Deref for OnDevice<'_, T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }
}

impl<T: Pod> Drop for OnDevice<'_, T> {
    fn drop(&mut self) {
        self.of.entry.touch(self.of.spill().now());
    }
}

/// The exclusive guard of a [`Spillable`], which keeps it on the device. A leaked guard leaks the
/// buffer.
pub struct OnDeviceMut<'a, T: Pod> {
    /// `None` while the guard is dropped.
    buffer: Option<DeviceBuffer<T>>,
    of: &'a Spillable<T>,
}

impl<T: Pod> OnDeviceMut<'_, T> {
    /// Keeps the buffer on the device without borrowing the [`Spillable`]. Ends the exclusive use:
    /// shared guards can be requested again.
    #[must_use]
    pub fn keep(mut self) -> KeptOnDevice<T> {
        let buffer = self.buffer.take();
        let buffer = buffer.unwrap_or_else(|| unreachable!("only the drop takes it"));
        // In a forked child the lock may be held by a thread of the parent.
        let shared = match self.of.spill().check_process() {
            Ok(()) => self.of.entry.share_lent(buffer),
            Err(_) => Arc::new(buffer),
        };
        KeptOnDevice::new(shared, self.of)
    }
}

impl<T: Pod> Deref for OnDeviceMut<'_, T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        self.buffer.as_ref().unwrap_or_else(|| unreachable!("only the drop takes it"))
    }
}

impl<T: Pod> DerefMut for OnDeviceMut<'_, T> {
    fn deref_mut(&mut self) -> &mut DeviceBuffer<T> {
        self.buffer.as_mut().unwrap_or_else(|| unreachable!("only the drop takes it"))
    }
}

impl<T: Pod> Drop for OnDeviceMut<'_, T> {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        if self.of.spill().check_process().is_ok() {
            self.of.entry.return_lent(buffer, self.of.spill().now());
        }
    }
}

/// Keeps a [`Spillable`] on the device while it lives, and borrows nothing: for work that is
/// submitted again and again, such as the replays of a graph, which have the address of the buffer.
///
/// From [`OnDevice::keep`] and [`OnDeviceMut::keep`]. Meanwhile the buffer can be read with shared
/// guards, [`Spillable::on_device_mut`] is [`Unavailable`](SpillError::Unavailable), and after the
/// `Spillable` was dropped the buffer lives until this is.
pub struct KeptOnDevice<T: Pod> {
    buffer: Arc<DeviceBuffer<T>>,
    entry: Arc<Entry<T>>,
    spill: Spill,
}

impl<T: Pod> KeptOnDevice<T> {
    fn new(buffer: Arc<DeviceBuffer<T>>, of: &Spillable<T>) -> Self {
        Self { buffer, entry: Arc::clone(&of.entry), spill: of.spill().clone() }
    }
}

impl<T: Pod> Deref for KeptOnDevice<T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }
}

impl<T: Pod> Drop for KeptOnDevice<T> {
    fn drop(&mut self) {
        self.entry.touch(self.spill.now());
    }
}

macro_rules! tracked_as_buffer {
    ($($name:literal: $guard:ty),*) => {$(
        impl<T: Pod> TrackedMemory for $guard {
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
        }

        impl<T: Pod> fmt::Debug for $guard {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple($name).field(&**self).finish()
            }
        }
    )*};
}

tracked_as_buffer! {
    "OnDevice": OnDevice<'_, T>,
    "OnDeviceMut": OnDeviceMut<'_, T>,
    "KeptOnDevice": KeptOnDevice<T>
}
