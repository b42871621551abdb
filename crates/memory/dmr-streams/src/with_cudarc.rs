//! The part of the interface that names cudarc's types: the feature `cudarc`.

use std::ops::Deref;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DeviceRepr, LaunchArgs};
use dmr_core::{ResourceResult, StreamId};

use crate::{Device, DeviceError, KernelArg, StreamGuard, StreamLease, StreamPool};

impl Device {
    /// Makes a device from a context that the program has already. Its state in cudarc (event
    /// tracking, streams) is shared with this device.
    ///
    /// # Errors
    ///
    /// [`DriverTooOld`](DeviceError::DriverTooOld) and [`Driver`](DeviceError::Driver).
    pub fn from_context(context: Arc<CudaContext>) -> Result<Self, DeviceError> {
        Self::with_owner(context, None)
    }
}

impl StreamPool {
    /// Adopts a stream that cudarc owns, as a lease.
    ///
    /// The pool keeps it alive until it is [retired](Self::retire_stream). A stream can be adopted
    /// again once its lease is dropped, and gets the same slot then. The slot of a retired stream
    /// is used again once the lease is dropped: the next stream in it waits for the last work of
    /// the retired one, if that is not done.
    ///
    /// # Errors
    ///
    /// As [`adopt_raw`](Self::adopt_raw).
    pub fn adopt(self: &Arc<Self>, stream: Arc<CudaStream>) -> ResourceResult<StreamLease> {
        self.adopt_cudarc(stream)
    }

    /// Returns cudarc's stream of an id, for a program that works with cudarc, and lends it, as
    /// [`StreamGuard::stream`](crate::StreamGuard::stream) does. Takes no lock. An adopted stream
    /// may be retired at any time: see [`adopt_raw`](Self::adopt_raw).
    ///
    /// # Errors
    ///
    /// As [`resolve_id`](Self::resolve_id).
    #[inline]
    pub fn resolve(&self, stream: StreamId) -> ResourceResult<Arc<CudaStream>> {
        let entered = self.entered_on_any_device(stream);
        entered.map(|guard| Arc::clone(guard.lent_stream())).ok_or_else(|| self.misuse(stream))
    }
}

impl StreamLease {
    /// Returns cudarc's stream, and lends it, as
    /// [`StreamGuard::stream`](crate::StreamGuard::stream) does.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        self.lent_stream()
    }
}

impl StreamGuard<'_> {
    /// Returns cudarc's stream, and *lends* it: from here on each call of the library on this
    /// stream looks for a capture, which takes 13 to 19 ns, because a program that has cudarc's
    /// stream can begin one.
    #[must_use]
    #[inline]
    pub fn stream(&self) -> &Arc<CudaStream> {
        self.lent_stream()
    }

    /// Begins to launch a kernel on the stream. Does not lend it: cudarc's builder shows no stream.
    #[inline]
    pub fn launch_builder<'a>(&'a self, kernel: &'a CudaFunction) -> LaunchArgs<'a> {
        self.cudarc_stream().launch_builder(kernel)
    }
}

/// cudarc's functions of the stream; using one lends it, as [`stream`](StreamGuard::stream) does.
impl Deref for StreamGuard<'_> {
    type Target = Arc<CudaStream>;

    #[inline]
    fn deref(&self) -> &Arc<CudaStream> {
        self.stream()
    }
}

// SAFETY: a 64-bit address, which is how kernels take pointers.
unsafe impl DeviceRepr for KernelArg {}
