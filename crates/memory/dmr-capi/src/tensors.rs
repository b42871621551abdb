//! Tensors by handle: made here, or imported by DLPack, and exported.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dmr::DeviceRuntime;
use dmr::dmr_buffer::DeviceBuffer;
use dmr::dmr_core::sync::lock;
use dmr::dmr_core::{AllocTag, StreamId};
use dmr::dmr_dlpack::dlpark::ManagedTensorBase;
use dmr::dmr_dlpack::dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned};
use dmr::dmr_dlpack::{Consumer, ExportError, ImportError, Layout, Tensor, import};
use dmr::dmr_external::Ready;
use dmr::dmr_launch::LaunchRecorder;
use dmr::dmr_streams::TrackedMemory;

use crate::runtime::UseOf;
use crate::status::{Failure, Outcome, Status};
use crate::{Address, AddressMap, TensorHandle};

/// The step between two handles, as for runtimes.
const STEP: usize = 16;

/// The tensors of a runtime. No entry is locked across a driver call.
#[derive(Default)]
pub(crate) struct Tensors {
    by_handle: AddressMap<usize, Held>,
    last: AtomicUsize,
}

/// A tensor; its lock is held while a use of it is declared.
pub(crate) type Held = Arc<Mutex<Tensor>>;

/// The kind of a managed tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Unversioned,
    Versioned,
}

impl Tensors {
    /// Allocates a tensor in C order; its content is undefined.
    pub(crate) fn create(
        &self,
        gpu: &DeviceRuntime,
        layout: &Layout,
        stream: StreamId,
        tag: AllocTag,
    ) -> Outcome<*mut TensorHandle> {
        let bytes = DeviceBuffer::<u8>::uninit_tagged(gpu, stream, layout.span(), tag)?;
        Ok(self.add(Tensor::of_bytes(bytes, layout.dtype(), layout.shape())?))
    }

    /// Imports a managed tensor, which is the program's as before after an error.
    ///
    /// # Safety
    ///
    /// As [`import`].
    pub(crate) unsafe fn import(
        &self,
        gpu: &DeviceRuntime,
        managed: *mut c_void,
        kind: Kind,
        ready: Ready,
        stream: StreamId,
    ) -> Outcome<*mut TensorHandle> {
        let tag = AllocTag::new("dlpack");
        let imported = match kind {
            Kind::Unversioned => {
                // SAFETY: the caller's obligation.
                unsafe { import(gpu, stream, managed.cast::<DLManagedTensor>(), ready, tag) }
            }
            Kind::Versioned => {
                let managed = managed.cast::<DLManagedTensorVersioned>();
                // SAFETY: as above.
                unsafe { import(gpu, stream, managed, ready, tag) }
            }
        };
        Ok(self.add(imported?))
    }

    /// Exports a tensor, and returns the managed tensor. `waiting` is a stream that waits for the
    /// recorded uses, if it is not the consumer's.
    ///
    /// # Safety
    ///
    /// `waiting` is a stream that was not destroyed.
    pub(crate) unsafe fn export(
        &self,
        gpu: &DeviceRuntime,
        handle: *const TensorHandle,
        kind: Kind,
        consumer: Consumer,
        waiting: Option<*mut c_void>,
    ) -> Outcome<*mut c_void> {
        let tensor = self.find(handle)?;
        let tensor = lock(&tensor);
        // SAFETY: the caller's obligation.
        unsafe {
            match kind {
                Kind::Unversioned => export_as::<DLManagedTensor>(gpu, &tensor, consumer, waiting),
                Kind::Versioned => {
                    export_as::<DLManagedTensorVersioned>(gpu, &tensor, consumer, waiting)
                }
            }
        }
    }

    /// Records in a launch a use of the tensor whose lowest address this is; returns `false` if
    /// there is none.
    pub(crate) fn record(
        &self,
        launch: &mut LaunchRecorder,
        address: Address,
        access: UseOf,
    ) -> bool {
        let held = self.by_handle.iter().map(|entry| Arc::clone(entry.value()));
        let held: Vec<Held> = held.collect();
        let is_there = |tensor: &Held| lock(tensor).device_ptr() == address;
        let Some(found) = held.iter().find(|tensor| address != 0 && is_there(tensor)) else {
            return false;
        };
        access.record(launch, &mut *lock(found));
        true
    }

    pub(crate) fn find(&self, handle: *const TensorHandle) -> Outcome<Held> {
        let found = self.by_handle.get(&handle.addr());
        found.map(|entry| Arc::clone(entry.value())).ok_or_else(unknown)
    }

    /// Destroys a tensor: its memory is freed after its uses, and after the consumers that it was
    /// exported to.
    pub(crate) fn destroy(&self, handle: *const TensorHandle) -> Outcome<()> {
        self.by_handle.remove(&handle.addr()).map(drop).ok_or_else(unknown)
    }

    pub(crate) fn destroy_all(&self) {
        let handles: Vec<usize> = self.by_handle.iter().map(|entry| *entry.key()).collect();
        for handle in handles {
            drop(self.by_handle.remove(&handle));
        }
    }

    fn add(&self, tensor: Tensor) -> *mut TensorHandle {
        let number = self.last.fetch_add(STEP, Ordering::Relaxed) + STEP;
        self.by_handle.insert(number, Arc::new(Mutex::new(tensor)));
        std::ptr::without_provenance_mut(number)
    }
}

/// # Safety
///
/// As [`Tensors::export`].
unsafe fn export_as<M: ManagedTensorBase + 'static>(
    gpu: &DeviceRuntime,
    tensor: &Tensor,
    consumer: Consumer,
    waiting: Option<*mut c_void>,
) -> Outcome<*mut c_void> {
    let exported = tensor.export::<M>(consumer)?;
    if let Some(waiting) = waiting
        && !exported.stream.is_null()
    {
        // SAFETY: the caller's obligation.
        unsafe { exported.make_wait(gpu.streams(), waiting) }?;
    }
    Ok(exported.tensor.into_raw().cast())
}

/// Calls the deleter of a managed tensor.
///
/// # Safety
///
/// `managed` is null, or a managed tensor of this kind that is the caller's to delete.
pub(crate) unsafe fn delete(managed: *mut c_void, kind: Kind) {
    if managed.is_null() {
        return;
    }
    // SAFETY: the caller's obligation.
    unsafe {
        match kind {
            Kind::Unversioned => DLManagedTensor::drop_raw(managed.cast()),
            Kind::Versioned => DLManagedTensorVersioned::drop_raw(managed.cast()),
        }
    }
}

fn unknown() -> Failure {
    let text = "no tensor of this runtime has this handle: it was destroyed before, or is another \
                runtime's";
    Failure::new(Status::UnknownAddress, text)
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Self {
        let status = match &error {
            ImportError::Resource(error) => Self::from(error.clone()).status,
            _ => Status::InvalidArgument,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ExportError> for Failure {
    fn from(error: ExportError) -> Self {
        let status = match &error {
            ExportError::Resource(error) => Self::from(error.clone()).status,
            _ => Status::Unsupported,
        };
        Self::new(status, error.to_string())
    }
}
