//! S2: a stream and a context that plain driver calls have made, with their owners.

#![allow(unsafe_code, reason = "makes plain driver calls")]

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdevice, CUstream};
use dmr_core::{AllocTag, DeviceMemoryResource, DeviceOps, ResourceError};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::{Device, PatternOps, StreamPool, StreamPoolConfig, Tracked};
use dmr_testkit::Rig;

/// A stream of the current context, destroyed with its owner.
struct OwnedStream {
    handle: usize,
    drops: Arc<AtomicUsize>,
}

impl OwnedStream {
    fn new(drops: &Arc<AtomicUsize>) -> Self {
        let mut stream: CUstream = ptr::null_mut();
        // SAFETY: the driver writes one handle.
        unsafe { sys::cuStreamCreate(&mut stream, 1) }.result().unwrap();
        Self { handle: stream as usize, drops: Arc::clone(drops) }
    }

    fn handle(&self) -> *mut c_void {
        self.handle as *mut c_void
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
        // SAFETY: it is alive, and this its only destruction.
        unsafe { sys::cuStreamDestroy_v2(self.handle().cast()) }.result().unwrap();
    }
}

/// A share of the primary context, released with its owner.
struct OwnedContext {
    of: CUdevice,
    drops: Arc<AtomicUsize>,
}

impl Drop for OwnedContext {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
        // SAFETY: it was retained, and this releases it once.
        unsafe { result::primary_ctx::release(self.of) }.unwrap();
    }
}

#[test]
fn the_owner_of_a_stream_is_kept_until_it_is_retired() {
    let rig = Rig::new();
    rig.device().bind().unwrap();
    let drops = Arc::new(AtomicUsize::new(0));
    let stream = OwnedStream::new(&drops);
    let handle = stream.handle();
    // SAFETY: the owner destroys the stream.
    let lease = unsafe { rig.streams().adopt_raw(handle, stream) }.unwrap();
    assert_eq!(lease.handle(), handle);
    let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
    let memory = Tracked::new(direct, Arc::clone(rig.streams())).unwrap();
    let block = memory.allocate(4096, lease.id(), AllocTag::new("raw")).unwrap();
    rig.ops().fill_pattern(&block, 0..4096, 7, lease.id()).unwrap();
    memory.deallocate(block).unwrap();
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    rig.streams().retire_stream(&lease).unwrap();
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    drop(lease);
    memory.reap_pending().unwrap();
    drop(memory);
    rig.assert_clean();
}

#[test]
fn the_owner_of_a_stream_is_dropped_where_it_is_not_adopted_and_with_the_pool() {
    let rig = Rig::new();
    rig.device().bind().unwrap();
    let drops = Arc::new(AtomicUsize::new(0));
    let config = StreamPoolConfig::new().with_max_adopted(1);
    let pool = StreamPool::new(rig.device().clone(), config).unwrap();
    // SAFETY: the last owner destroys the stream.
    let adopt =
        |stream: &Arc<OwnedStream>| unsafe { pool.adopt_raw(stream.handle(), Arc::clone(stream)) };
    let first = Arc::new(OwnedStream::new(&drops));
    let lease = adopt(&first).unwrap();
    let second = Arc::new(OwnedStream::new(&drops));
    assert!(matches!(adopt(&second), Err(ResourceError::Capacity { .. })));
    assert_eq!(Arc::strong_count(&second), 1, "it was not adopted");
    // Without a retirement the stream stays adopted, and can be adopted again.
    drop(lease);
    assert_eq!(Arc::strong_count(&first), 2);
    let again = adopt(&first).unwrap();
    assert_eq!(Arc::strong_count(&first), 2, "the owner of before was dropped");
    drop((again, first));
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    drop(pool);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    drop(second);
    rig.assert_clean();
}

#[test]
fn a_context_of_another_owner_is_a_device_and_is_released_by_its_owner() {
    let rig = Rig::new();
    rig.device().bind().unwrap();
    let drops = Arc::new(AtomicUsize::new(0));
    let of = rig.device().context().cu_device();
    // SAFETY: the device comes from the driver.
    let context = unsafe { result::primary_ctx::retain(of) }.unwrap();
    let owner = OwnedContext { of, drops: Arc::clone(&drops) };
    // SAFETY: the owner releases the context.
    let device = unsafe { Device::from_raw(context.cast(), owner) }.unwrap();
    assert_eq!(device.ordinal(), rig.device().ordinal());
    let streams = StreamPool::new(device.clone(), StreamPoolConfig::new()).unwrap();
    let stream = streams.acquire().unwrap();
    let ops = PatternOps::new(Arc::clone(&streams)).unwrap();
    let memory = DirectCudaResource::new(Arc::clone(&streams));
    let block = memory.allocate(4096, stream.id(), AllocTag::new("raw")).unwrap();
    ops.fill_pattern(&block, 0..4096, 7, stream.id()).unwrap();
    ops.check_pattern(&block, 0..4096, 7, stream.id(), 1).unwrap();
    assert_eq!(ops.collect().unwrap(), []);
    // The handle of a launch, without cudarc's types.
    let guard = streams.enter(stream.id()).unwrap();
    let submitted = guard.with_handle(|on| {
        // SAFETY: the memory is the block's.
        unsafe { sys::cuMemsetD8Async(block.ptr(), 1, 4096, on.cast()) }.result()
    });
    submitted.unwrap().unwrap();
    drop(guard);
    streams.synchronize(stream.id()).unwrap();
    memory.deallocate(block).unwrap();
    memory.reap_pending().unwrap();
    drop((memory, ops, stream, device));
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    drop(streams);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    rig.device().bind().unwrap();
    rig.assert_clean();
}
