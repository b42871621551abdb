//! T1: a stream is named, and that is enough: a thread on which another context of the same device
//! is current allocates, uses and frees as any other.

#![allow(unsafe_code, reason = "makes a context")]

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use cudarc::driver::{result, sys};
use dmr_core::{
    Access, AllocTag, BlockUse, DeviceMemoryResource, DeviceOps, StreamId, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::Tracked;
use dmr_streams::library::LIBRARY_NAMES;
use dmr_testkit::Rig;
use libloading::Library;

const BYTES: usize = 1 << 20;

/// A context beside the primary one of the rig's device.
struct Second {
    handle: sys::CUcontext,
    primary: sys::CUcontext,
}

// SAFETY: a context may be current on any thread.
unsafe impl Sync for Second {}

impl Second {
    /// By its oldest name, which every driver has and cudarc's bindings of some versions have not.
    fn new(rig: &Rig) -> Self {
        type Create = unsafe extern "system" fn(*mut sys::CUcontext, c_uint, c_int) -> c_int;
        // SAFETY: the driver is loaded already.
        let library = LIBRARY_NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
        let library = library.expect("the driver");
        let mut handle = std::ptr::null_mut();
        let context = rig.device().context();
        // SAFETY: the prototype of cuda.h; the first argument is the address of a handle.
        let code = unsafe {
            let create = library.get::<Create>(b"cuCtxCreate_v2").unwrap();
            create(&mut handle, 0, context.cu_device())
        };
        assert_eq!(code, 0, "cuCtxCreate");
        Self { handle, primary: context.cu_ctx() }
    }

    fn make_current(&self) {
        // SAFETY: it is there until the end of the test.
        unsafe { result::ctx::set_current(self.handle) }.unwrap();
    }

    /// A call leaves what was current, or has bound the context of its device: nothing else.
    fn assert_one_of_both_is_current(&self) {
        let current = result::ctx::get_current().unwrap();
        assert!([Some(self.handle), Some(self.primary)].contains(&current), "{current:?}");
    }

    fn destroy(self) {
        // SAFETY: made here, and not used any more.
        unsafe { sys::cuCtxDestroy_v2(self.handle) }.result().unwrap();
    }
}

/// The streams that a block is used on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Streams {
    Own,
    /// One is CUDA's legacy stream: its handle is the same in every context, and means another
    /// stream in each.
    WithLegacy,
}

/// Every call of a block's life, each where the second context is current; the block is written on
/// its home stream, read on another, written at home again.
fn use_a_block(
    rig: &Rig,
    resource: &dyn DeviceMemoryResource,
    second: &Second,
    (streams, round): (Streams, u32),
) {
    let elsewhere = || {
        second.assert_one_of_both_is_current();
        second.make_current();
    };
    second.make_current();
    let mut home = rig.stream();
    elsewhere();
    let mut other = match streams {
        Streams::Own => rig.stream(),
        Streams::WithLegacy => rig.streams().adopt_legacy().unwrap(),
    };
    if round % 3 == 2 {
        std::mem::swap(&mut home, &mut other);
    }
    elsewhere();
    let block = resource.allocate(BYTES, home.id(), AllocTag::UNTAGGED).unwrap();
    let last = [None, Some((&other, Access::Write))][round as usize % 2];
    let uses = [(&home, Access::Write), (&other, Access::Read), (&home, Access::ReadWrite)];
    for (nth, (stream, access)) in (0..).zip(uses.into_iter().chain(last)) {
        let stream: StreamId = stream.id();
        elsewhere();
        let uses = [BlockUse::new(block.id(), access)];
        let tokens = resource.prepare_uses(&uses, stream).unwrap();
        elsewhere();
        let pattern = |nth: u32| 16 * round + nth;
        if access.reads() {
            // The use before has written it, or has read what the one before that has written.
            rig.ops().check_pattern(&block, 0..BYTES, pattern(0), stream, 0).unwrap();
        }
        elsewhere();
        if access == Access::Write {
            rig.delay(stream);
            rig.ops().fill_pattern(&block, 0..BYTES, pattern(nth), stream).unwrap();
        }
        elsewhere();
        resource.finish_uses(tokens).unwrap();
    }
    elsewhere();
    resource.deallocate(block).unwrap();
    second.assert_one_of_both_is_current();
}

fn assert_all_is_well<R: DeviceMemoryResource>(make: impl Fn(&Rig) -> R) {
    for streams in [Streams::Own, Streams::WithLegacy] {
        assert_all_is_well_on(streams, &make);
    }
}

fn assert_all_is_well_on<R: DeviceMemoryResource>(streams: Streams, make: impl Fn(&Rig) -> R) {
    let rig = Rig::new();
    // No call has used the device from this thread's second context before: even the streams, the
    // kernels and the driver's pool are made there.
    let second = Second::new(&rig);
    second.make_current();
    let resource = make(&rig);
    for round in 0..6 {
        use_a_block(&rig, &resource, &second, (streams, round));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| use_a_block(&rig, &resource, &second, (streams, 6)));
    });
    second.make_current();
    resource.try_reap().unwrap();
    second.make_current();
    resource.reap_pending().unwrap();
    assert_eq!(resource.bytes_outstanding(), 0);
    second.make_current();
    rig.device().bind().unwrap();
    assert_eq!(result::ctx::get_current().unwrap(), Some(second.primary), "bound, it stays so");
    second.make_current();
    drop(resource);
    second.assert_one_of_both_is_current();
    second.destroy();
    rig.assert_clean();
}

fn direct(rig: &Rig) -> DirectCudaResource {
    DirectCudaResource::new(Arc::clone(rig.streams()))
}

fn asynchronous(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

#[test]
fn where_another_context_is_current_the_drivers_pool_serves_its_streams() {
    assert_all_is_well(asynchronous);
}

#[test]
fn where_another_context_is_current_a_pool_serves_its_streams() {
    assert_all_is_well(|rig| {
        // So small that streams wait for each other's memory.
        let config = PoolConfig::fast().with_growth(2 << 20).with_maximum_size(4 << 20);
        PoolResource::new(asynchronous(rig), Arc::clone(rig.streams()), config).unwrap()
    });
}

#[test]
fn where_another_context_is_current_a_tracked_resource_serves_its_streams() {
    assert_all_is_well(|rig| Tracked::new(direct(rig), Arc::clone(rig.streams())).unwrap());
}
