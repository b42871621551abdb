//! A buffer of dmr that cuda-core holds.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use cuda_core::{AllocationLease, DeviceAllocation, DeviceCopy, DriverError, RawDeviceBuffer};
use dmr_buffer::DeviceBuffer;
use dmr_core::Access;
use dmr_launch::{LaunchError, LaunchRecorder};
use dmr_streams::{DeviceContext, KernelArg, TrackedMemory};

use crate::AdoptedStream;

/// The error of a use of a lent buffer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LendError {
    /// The launch failed. Its error has the step.
    #[error(transparent)]
    Launch(#[from] LaunchError<DriverError>),
    /// cuda-core refused the use. `CUDA_ERROR_NOT_READY`: work on another stream uses the buffer.
    #[error("cuda-core refused the use: {0:?}")]
    CudaCore(DriverError),
}

/// The error of a buffer that cannot be reclaimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReclaimError {
    /// A view, an operation that was not run, or a graph holds the memory.
    #[error("views, operations or graphs of cuda-core hold the buffer")]
    Held,
    /// The last use was refused.
    #[error(transparent)]
    Lend(#[from] LendError),
}

/// An error, with the buffer that the call was to consume.
#[derive(Debug)]
pub struct Refused<B, E> {
    /// The reason.
    pub error: E,
    /// The buffer, unchanged.
    pub buffer: B,
}

/// The owner that cuda-core keeps while anything of its own uses the memory.
struct Owner<T: Pod + Send + Sync> {
    ptr: u64,
    bytes: usize,
    context: Arc<cuda_core::Context>,
    /// `None` once the buffer was reclaimed.
    buffer: Mutex<Option<DeviceBuffer<T>>>,
    /// The streams that the buffer was lent to, or used on by dmr.
    streams: Mutex<Vec<Arc<AdoptedStream>>>,
}

impl<T: Pod + Send + Sync> Owner<T> {
    fn buffer(&self) -> MutexGuard<'_, Option<DeviceBuffer<T>>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Arc<AdoptedStream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_stream(&self, stream: &Arc<AdoptedStream>) {
        let mut streams = self.streams();
        if !streams.iter().any(|known| Arc::ptr_eq(known, stream)) {
            streams.push(Arc::clone(stream));
        }
    }

    fn record(&self, recorder: &mut LaunchRecorder, access: Access) -> KernelArg {
        let mut buffer = self.buffer();
        let buffer = buffer.as_mut().expect("a loan ends when its buffer is reclaimed");
        match access {
            Access::Read => recorder.read(buffer),
            Access::Write => recorder.write(buffer),
            Access::ReadWrite => recorder.read_write(buffer),
        }
    }

    /// Records a use behind the work of each stream so far. cuda-async's `async_on` ends its leases
    /// when the work is submitted, so the end of the leases is not the end of the work.
    fn record_all_streams(&self) -> Result<(), LaunchError<DriverError>> {
        let mut buffer = self.buffer();
        let Some(buffer) = buffer.as_mut() else { return Ok(()) };
        for stream in &*self.streams() {
            let mut recorder = LaunchRecorder::new_strict(&**stream);
            let _ = recorder.read_write(buffer);
            recorder.launch(buffer.context(), |_| Ok(()))?;
        }
        Ok(())
    }
}

// SAFETY: the buffer does not grow in its owner, so address and size are constant. Its block is
// deallocated when the last lease of cuda-core is gone, behind the work of all streams. `reclaim`
// takes the buffer only when no view is left that could start work.
unsafe impl<T: Pod + Send + Sync> DeviceAllocation for Owner<T> {
    fn device_ptr(&self) -> cuda_core::sys::CUdeviceptr {
        self.ptr
    }

    fn len_bytes(&self) -> usize {
        self.bytes
    }

    fn context(&self) -> Arc<cuda_core::Context> {
        Arc::clone(&self.context)
    }
}

impl<T: Pod + Send + Sync> Drop for Owner<T> {
    /// Frees the memory behind the work of the streams so far.
    fn drop(&mut self) {
        if self.record_all_streams().is_err() {
            // The end of the work is not known.
            mem::forget(self.buffer().take());
        }
    }
}

/// A lease that ends behind the work of its stream, also where the closure that enqueues that work
/// panics.
struct StreamLeased<'s> {
    lease: Option<AllocationLease>,
    stream: &'s cuda_core::Stream,
}

impl StreamLeased<'_> {
    fn end(mut self) -> Result<(), DriverError> {
        let lease = self.lease.take();
        lease.map_or(Ok(()), |lease| lease.retain_until_complete(self.stream))
    }
}

impl Drop for StreamLeased<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            // After a failure cuda-core keeps the lease.
            let _ = lease.retain_until_complete(self.stream);
        }
    }
}

/// A buffer of dmr that cuda-core holds.
///
/// Dropping it leaves the memory to cuda-core's views. It is freed, as that of a dropped buffer is,
/// when the last view and the work that the views have started are gone: behind the work of the
/// streams that were passed to the methods. `async_on` of cuda-async on any other stream must be
/// completed before, which is among its safety conditions.
pub struct Lent<T: Pod + Send + Sync> {
    raw: RawDeviceBuffer,
    owner: Arc<Owner<T>>,
    len: usize,
}

impl<T: Pod + Send + Sync> Lent<T> {
    /// Lends the buffer. Work that is submitted to `stream` from now on is ordered after all uses
    /// by dmr so far; until these are done, cuda-core refuses the buffer on other streams. Does not
    /// wait.
    ///
    /// # Errors
    ///
    /// The buffer is in the error.
    pub fn new<C: DeviceContext + ?Sized>(
        ctx: &C,
        buffer: DeviceBuffer<T>,
        stream: &Arc<AdoptedStream>,
    ) -> Result<Self, Box<Refused<DeviceBuffer<T>, LendError>>> {
        let len = buffer.len();
        let owner = Arc::new(Owner {
            ptr: buffer.device_ptr(),
            bytes: buffer.size_in_bytes(),
            context: Arc::clone(stream.stream().context()),
            buffer: Mutex::new(Some(buffer)),
            streams: Mutex::default(),
        });
        let raw = RawDeviceBuffer::foreign(Arc::clone(&owner) as _, owner.bytes);
        let lent = Self { raw, owner, len };
        match lent.launch(ctx, stream, Access::ReadWrite, |_, _| Ok(())) {
            Ok(()) => Ok(lent),
            Err(error) => {
                let buffer = lent.owner.buffer().take().expect("it was just put there");
                Err(Box::new(Refused { error, buffer }))
            }
        }
    }

    /// Returns the memory as cuda-core's bytes. All views of it share the leases.
    #[must_use]
    pub fn storage(&self) -> &RawDeviceBuffer {
        &self.raw
    }

    /// Returns the memory as cuda-core's buffer, from which cuTile makes tensors.
    ///
    /// # Errors
    ///
    /// As `cuda_core::DeviceBuffer::from_storage_copy`.
    pub fn typed(&self) -> Result<cuda_core::DeviceBuffer<T>, DriverError>
    where
        T: DeviceCopy,
    {
        // SAFETY: any bytes are a value of a `Pod`, so aliases do no harm. Uses by dmr take a
        // lease.
        unsafe { cuda_core::DeviceBuffer::from_storage_copy(self.raw.clone(), self.len) }
    }

    /// Launches work of dmr that uses the buffer, on a stream of cuda-core and under a lease of it.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_NOT_READY` if conflicting work is under way on another stream; those of the
    /// launch.
    pub fn launch<C: DeviceContext + ?Sized>(
        &self,
        ctx: &C,
        stream: &Arc<AdoptedStream>,
        access: Access,
        enqueue: impl FnOnce(&cuda_core::Stream, KernelArg) -> Result<(), DriverError>,
    ) -> Result<(), LendError> {
        let on = stream.stream();
        let lease = self.raw.acquire(on, access != Access::Read, false);
        let lease = Some(lease.map_err(LendError::CudaCore)?);
        let leased = StreamLeased { lease, stream: on };
        self.owner.add_stream(stream);
        let mut recorder = LaunchRecorder::new_strict(&**stream);
        let argument = self.owner.record(&mut recorder, access);
        let launched = recorder.launch(ctx, |_| enqueue(on, argument));
        // Also after an error: part of the work may be under way.
        leased.end().map_err(LendError::CudaCore)?;
        Ok(launched?)
    }

    /// Reclaims the buffer. Its next use by dmr is ordered after the work so far on `stream`, and
    /// on the other streams that were passed to the methods. Does not wait.
    ///
    /// # Errors
    ///
    /// The loan is in the error. [`Held`](ReclaimError::Held), and `CUDA_ERROR_NOT_READY` if work
    /// is under way on another stream.
    pub fn reclaim<C: DeviceContext + ?Sized>(
        self,
        ctx: &C,
        stream: &Arc<AdoptedStream>,
    ) -> Result<DeviceBuffer<T>, Box<Refused<Self, ReclaimError>>> {
        match self.end(ctx, stream) {
            Ok(()) => Ok(self.owner.buffer().take().expect("a loan has its buffer")),
            Err(error) => Err(Box::new(Refused { error, buffer: self })),
        }
    }

    fn end<C: DeviceContext + ?Sized>(
        &self,
        ctx: &C,
        stream: &Arc<AdoptedStream>,
    ) -> Result<(), ReclaimError> {
        if !self.raw.is_unique() {
            return Err(ReclaimError::Held);
        }
        // No other view can start work from here on.
        self.launch(ctx, stream, Access::ReadWrite, |_, _| Ok(()))?;
        Ok(self.owner.record_all_streams().map_err(LendError::from)?)
    }
}

impl<T: Pod + Send + Sync> fmt::Debug for Lent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent")
            .field("raw", &self.raw)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
