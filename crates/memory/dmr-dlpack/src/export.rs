//! Exporting tensors, and the uses of their consumers.

use std::ffi::c_void;
use std::fmt;
use std::mem;
use std::sync::Arc;

use dlpark::ffi::{DLDevice, DLTensor};
use dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use dmr_buffer::Column;
use dmr_core::{Access, BlockUse, ResourceError, ResourceResult, StreamId, UseTrackingExt, panics};
use dmr_streams::event::DriverEvent;
use dmr_streams::{CurrentContext, DeviceContext, MemoryOrigin, StreamPool, TrackedMemory};

use crate::Tensor;
use crate::layout::Layout;

/// The stream on which the consumer of an exported tensor uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumer {
    /// The uses are on this stream of the pool, such as an adopted one: it waits for all recorded
    /// uses before the export returns. When the tensor is deleted, the work that was submitted to
    /// the stream until then is recorded as a use. If the stream is retired then, or captures a
    /// graph, the deletion is that of an [unknown](Self::Unknown) consumer.
    Stream(StreamId),
    /// It is unknown where they are: the consumer orders them after the
    /// [published stream](Exported::stream). When the tensor is deleted, that thread waits for all
    /// work of the device; while a stream of the pool captures a graph, which that would end, it
    /// leaks the memory.
    Unknown,
}

/// A tensor for another library.
pub struct Exported<M: ManagedTensorBase> {
    /// The tensor, for one consumer. Dropping it deletes it.
    pub tensor: Managed<M>,
    /// The stream (a `CUstream`) whose next work comes after all recorded uses: that of the
    /// consumer, or the pool's first one.
    pub stream: *mut c_void,
}

/// The reason why a tensor was not exported. It is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A tensor without a version has no flag for what may only be read.
    #[error("a read-only tensor has no `DLManagedTensor`: export it as `DLManagedTensorVersioned`")]
    ReadOnly,
    /// A stream could not be made to wait for the uses of the tensor.
    #[error("the tensor was not exported: {0}")]
    Resource(#[from] ResourceError),
}

impl<M: ManagedTensorBase> fmt::Debug for Exported<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exported").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl<M: ManagedTensorBase> Exported<M> {
    /// Makes another stream (a `CUstream`) than the [published](Self::stream) one wait for all
    /// recorded uses. The per-thread default stream is that of the calling thread.
    ///
    /// # Errors
    ///
    /// [`StreamCapturing`](ResourceError::StreamCapturing); [`Driver`](ResourceError::Driver).
    ///
    /// # Safety
    ///
    /// `waiting` is a stream of the device's context that is not destroyed during the call, and
    /// `streams` is the pool of the tensor.
    pub unsafe fn make_wait(
        &self,
        streams: &StreamPool,
        waiting: *mut c_void,
    ) -> ResourceResult<()> {
        let device = streams.device();
        device.bind()?;
        let wrap = |stream: *mut c_void| {
            // SAFETY: both streams are alive, by this function's contract and because the pool
            // keeps its first stream; dropping the wrapper makes no driver call.
            unsafe { device.context().wrap_borrowed_stream(stream.cast()) }
        };
        let published = wrap(self.stream);
        let waiting = wrap(waiting);
        device.refuse_capture_of(&published)?;
        device.refuse_capture_of(&waiting)?;
        let event = DriverEvent::new(device)?;
        event.record_on_other(&published)?;
        event.make_other_wait(&waiting)
    }
}

impl Tensor {
    /// Exports the tensor to a consumer. The consumer's stream waits for all recorded uses first;
    /// the host does not wait.
    ///
    /// The memory stays allocated until the tensor is deleted, which any thread may do, also
    /// without a context; the context that is current there stays. A deletion that cannot order the
    /// uses of the consumer leaks the memory, and so does one in a forked child.
    ///
    /// Between the export and the deletion the uses of the consumer are not recorded: use the
    /// memory here meanwhile on the consumer's stream only, or in an order that the program makes.
    ///
    /// # Errors
    ///
    /// [`ReadOnly`](ExportError::ReadOnly); [`Resource`](ExportError::Resource): for the stream as
    /// a launch on it.
    pub fn export<M: ManagedTensorBase + 'static>(
        &self,
        consumer: Consumer,
    ) -> Result<Exported<M>, ExportError> {
        let owner = Lent { bytes: Arc::clone(&self.bytes), consumer };
        let flags = match self.bytes.is_read_only() {
            true => DlpackFlags::READ_ONLY,
            false => DlpackFlags::empty(),
        };
        let streams = owner.context().map(|context| context.streams());
        let ordinal = streams.map_or(0, |streams| streams.device().ordinal());
        let used = owner.record();
        let stream = used.and_then(|()| owner.published());
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                owner.give_back();
                return Err(error.into());
            }
        };
        let device = DLDevice::cuda(ordinal as i32);
        let made = Box::new(Made::<M>::new(self.first_element(), &self.layout, device, owner));
        let raw = Box::into_raw(made);
        // SAFETY: just made, and not shared. The flags claim no copy.
        unsafe { (*raw).managed.set_flags_unchecked(flags) };
        // SAFETY: as above; the parts of the tensor do not move.
        let tensor = unsafe {
            (*raw).link();
            Managed::from_raw(raw.cast::<M>())
        };
        match tensor {
            // SAFETY: just made.
            Ok(tensor) if unsafe { (*raw).managed.flags() } == flags => {
                Ok(Exported { tensor, stream })
            }
            // It is deleted again: nothing was used.
            _ => Err(ExportError::ReadOnly),
        }
    }
}

/// The memory of an exported tensor, which a consumer uses until this is dropped.
struct Lent {
    bytes: Arc<Column<u8>>,
    consumer: Consumer,
}

impl Lent {
    fn context(&self) -> Option<&(dyn DeviceContext + Send + Sync)> {
        Some(self.bytes.as_buffer()?.context())
    }

    fn stream(&self) -> Option<StreamId> {
        Some(match self.consumer {
            Consumer::Stream(stream) => stream,
            Consumer::Unknown => self.context()?.streams().default_stream(),
        })
    }

    /// Makes the stream wait for all recorded uses, and records its work so far as a use.
    fn record(&self) -> ResourceResult<()> {
        let MemoryOrigin::Block(block) = self.bytes.origin() else { return Ok(()) };
        let (Some(context), Some(stream)) = (self.context(), self.stream()) else { return Ok(()) };
        let access = match self.bytes.is_read_only() {
            true => Access::Read,
            false => Access::ReadWrite,
        };
        let resource = context.resource();
        let open = resource.prepare_uses(&[BlockUse::new(block, access)], stream)?;
        resource.finish_uses(open)
    }

    /// Returns the handle of the stream that comes after all recorded uses.
    fn published(&self) -> ResourceResult<*mut c_void> {
        let (Some(context), Some(stream)) = (self.context(), self.stream()) else {
            return Ok(std::ptr::null_mut());
        };
        Ok(context.streams().enter(stream)?.handle())
    }

    /// Drops the memory as what no consumer has used.
    fn give_back(self) {
        let lent = mem::ManuallyDrop::new(self);
        // SAFETY: `lent` is not dropped, so this is the only owner.
        drop(unsafe { std::ptr::read(&lent.bytes) });
    }

    /// Makes the free of the memory come after the uses of the consumer; returns whether it does.
    fn order(&self) -> bool {
        if self.bytes.device_ptr() == 0 {
            return true;
        }
        let Some(context) = self.context() else { return true };
        let streams = context.streams();
        if streams.device().is_forked() {
            return false;
        }
        if streams.device().is_lost() {
            return true;
        }
        let _current = CurrentContext::keep();
        let is_recorded = match self.consumer {
            Consumer::Stream(_) => self.record().is_ok(),
            Consumer::Unknown => false,
        };
        let is_ordered = is_recorded || streams.synchronize_device().unwrap_or(false);
        is_ordered || streams.device().is_lost()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let is_ordered = panics::catch(|| self.order()).unwrap_or(false);
        if !is_ordered {
            // Its last owner would free memory that the consumer may be using.
            mem::forget(Arc::clone(&self.bytes));
        }
    }
}

/// A managed tensor with what it points to. The tensor is first, so that both have one address.
#[repr(C)]
struct Made<M> {
    managed: M,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    lent: Lent,
}

impl<M: ManagedTensorBase> Made<M> {
    fn new(first_element: u64, layout: &Layout, device: DLDevice, lent: Lent) -> Self {
        let tensor = DLTensor {
            data: std::ptr::with_exposed_provenance_mut(first_element as usize),
            device,
            ndim: layout.shape.len() as i32,
            dtype: layout.dtype,
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        Self {
            managed: M::from_parts(tensor, std::ptr::null_mut(), Some(delete::<M>)),
            shape: layout.shape.clone(),
            strides: layout.strides.clone(),
            lent,
        }
    }

    /// Sets the addresses of shape and strides.
    fn link(&mut self) {
        let shape = self.shape.as_mut_ptr();
        let strides = self.strides.as_mut_ptr();
        let tensor = self.managed.tensor_mut();
        tensor.shape = shape;
        tensor.strides = strides;
    }
}

/// The deleter of an exported tensor.
///
/// # Safety
///
/// `tensor` was exported here, and this is its only deletion.
unsafe extern "C" fn delete<M: ManagedTensorBase>(tensor: *mut M) {
    if tensor.is_null() {
        return;
    }
    // SAFETY: the caller's obligation: the first field of a `Made` that was boxed.
    let made = unsafe { Box::from_raw(tensor.cast::<Made<M>>()) };
    let _ = panics::catch(|| drop(made));
}
