//! Shared by the tests: a context, and a producer of tensors that counts its deletions.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use dlpark::ffi::{DLDataType, DLDevice, DLTensor};
use dlpark::{DlpackFlags, ManagedTensorBase};
use dmr_core::DeviceMemoryResource;
use dmr_cuda_direct::DirectCudaResource;
use dmr_dlpack::dlpark;
use dmr_streams::{DeviceContext, StreamPool, Tracked};
use dmr_testkit::Rig;

pub(crate) struct Context {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
}

impl DeviceContext for Context {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

pub(crate) fn context(rig: &Rig) -> Context {
    let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
    let tracked = Tracked::new(direct, Arc::clone(rig.streams())).expect("tracking");
    Context { resource: Arc::new(tracked), streams: Arc::clone(rig.streams()) }
}

/// A tensor of a producer, with what it points to. The tensor is first, so that both have one
/// address.
#[repr(C)]
pub(crate) struct Theirs<M> {
    managed: M,
    shape: Vec<i64>,
    strides: Vec<i64>,
    slice: Option<CudaSlice<u8>>,
    deletions: Arc<AtomicUsize>,
}

unsafe extern "C" fn delete<M>(tensor: *mut M) {
    // SAFETY: the first field of a `Theirs` that was boxed, and is deleted once.
    let theirs = unsafe { Box::from_raw(tensor.cast::<Theirs<M>>()) };
    theirs.deletions.fetch_add(1, Ordering::SeqCst);
    drop(theirs.slice);
}

/// Makes a tensor; null strides where `strides` is empty and the shape is not.
pub(crate) fn tensor<M: ManagedTensorBase>(
    slice: Option<CudaSlice<u8>>,
    on: &CudaStream,
    ordinal: usize,
    dtype: DLDataType,
    shape: &[i64],
    strides: &[i64],
    deletions: &Arc<AtomicUsize>,
) -> *mut M {
    let data = slice.as_ref().map_or(0, |slice| slice.device_ptr(on).0);
    let descriptor = DLTensor {
        data: data as *mut c_void,
        device: DLDevice::cuda(ordinal as i32),
        ndim: shape.len() as i32,
        dtype,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let mut theirs = Box::new(Theirs {
        managed: M::from_parts(descriptor, std::ptr::null_mut(), Some(delete::<M>)),
        shape: shape.to_vec(),
        strides: strides.to_vec(),
        slice,
        deletions: Arc::clone(deletions),
    });
    let shape = theirs.shape.as_mut_ptr();
    let strides = theirs.strides.as_mut_ptr();
    let has_strides = !theirs.strides.is_empty();
    let descriptor = theirs.managed.tensor_mut();
    descriptor.shape = shape;
    descriptor.strides = if has_strides { strides } else { std::ptr::null_mut() };
    Box::into_raw(theirs).cast()
}

/// Sets the flags of a tensor.
#[allow(dead_code, reason = "one of the executables needs it")]
pub(crate) fn set_flags<M: ManagedTensorBase>(tensor: *mut M, flags: DlpackFlags) {
    // SAFETY: made by `tensor`.
    unsafe { (*tensor).set_flags_unchecked(flags) };
}

pub(crate) fn wait_for(deletions: &AtomicUsize, count: usize) {
    let start = Instant::now();
    while deletions.load(Ordering::SeqCst) < count {
        assert!(start.elapsed() < Duration::from_secs(20), "{deletions:?} deletions of {count}");
        std::thread::sleep(Duration::from_micros(100));
    }
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(deletions.load(Ordering::SeqCst), count);
}
