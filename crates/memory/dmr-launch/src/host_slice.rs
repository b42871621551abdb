//! Pinned memory of a launch, for cudarc's own copies between the device and the host.

#![allow(unsafe_code, reason = "implements cudarc's trait for host memory")]

use std::fmt;
use std::ptr::with_exposed_provenance_mut;
use std::slice;

use cudarc::driver::{CudaStream, HostSlice, SyncOnDrop};

use crate::LaunchViewMut;

/// Pinned memory of a launch, for cudarc's copies: `memcpy_dtoh`, `memcpy_htod`, `clone_htod`.
///
/// From [`LaunchViewMut::as_pinned`]. Implements cudarc's [`HostSlice`]. The host does not wait for
/// the copy: it is a use of the launch, on the launch's stream or another one, and ordered as every
/// use of a [view](crate::LaunchView#another-stream) is. A copy that cannot be ordered copies
/// nothing, and is an error of the launch.
///
/// The trait has access to write in any case, so the launch must have declared the memory with
/// [`Writes`](crate::Writes) or [`ReadsAndWrites`](crate::ReadsAndWrites).
pub struct PinnedLaunchView<'v, 's, T> {
    view: &'v mut LaunchViewMut<'s, T>,
}

impl<'s, T> LaunchViewMut<'s, T> {
    /// Returns the memory for cudarc's copies between the device and the host; `None` if it is not
    /// pinned memory.
    #[must_use]
    pub fn as_pinned(&mut self) -> Option<PinnedLaunchView<'_, 's, T>> {
        self.is_pinned().then_some(PinnedLaunchView { view: self })
    }
}

impl<T> PinnedLaunchView<'_, '_, T> {
    /// Orders the next work on `stream`, and returns the elements that it may copy, and the guard
    /// that records it.
    fn ordered_on<'a>(&'a self, stream: &'a CudaStream) -> (*mut T, usize, SyncOnDrop<'a>) {
        let (address, guard) = self.view.address(stream);
        match (address, self.view.len()) {
            // Not ordered, or no elements.
            (0, _) | (_, 0) => (std::ptr::dangling_mut(), 0, guard),
            (address, len) => (with_exposed_provenance_mut(address as usize), len, guard),
        }
    }
}

impl<T> HostSlice<T> for PinnedLaunchView<'_, '_, T> {
    fn len(&self) -> usize {
        self.view.len()
    }

    unsafe fn stream_synced_slice<'a>(
        &'a self,
        stream: &'a CudaStream,
    ) -> (&'a [T], SyncOnDrop<'a>) {
        let (start, len, guard) = self.ordered_on(stream);
        // SAFETY: the elements of a pinned buffer, which is borrowed for the launch; the address is
        // also the host's. Only the device accesses them: the caller uses them with the stream.
        (unsafe { slice::from_raw_parts(start, len) }, guard)
    }

    unsafe fn stream_synced_mut_slice<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (&'a mut [T], SyncOnDrop<'a>) {
        let (start, len, guard) = self.ordered_on(stream);
        // SAFETY: as above, and no other view of the elements is used meanwhile.
        (unsafe { slice::from_raw_parts_mut(start, len) }, guard)
    }
}

impl<T> fmt::Debug for PinnedLaunchView<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PinnedLaunchView").field(&self.view).finish()
    }
}
