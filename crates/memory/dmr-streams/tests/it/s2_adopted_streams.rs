//! S2, S3, T1: streams of other owners, adopted by a pool and retired again.

#![allow(unsafe_code, reason = "adopts a raw stream, which is unsafe")]

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, sys};
use dmr_core::error::StreamProblem;
use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError,
    ResourceResult, StreamId, UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::library::LIBRARY_NAMES;
use dmr_streams::{StreamPoolConfig, Tracked};
use dmr_testkit::Rig;
use dmr_testkit::rig::RigConfig;
use libloading::Library;

const BYTES: usize = 1 << 20;

fn foreign(rig: &Rig) -> Arc<CudaStream> {
    rig.device().context().new_stream().unwrap()
}

/// A context beside the primary one of the rig's device. It is made by its oldest name, which every
/// driver has and cudarc's bindings of some versions have not.
fn second_context(rig: &Rig) -> Arc<CudaContext> {
    type Create = unsafe extern "system" fn(*mut sys::CUcontext, c_uint, c_int) -> c_int;
    // SAFETY: the driver is loaded already.
    let library = LIBRARY_NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
    let library = library.expect("the driver");
    let mut handle = std::ptr::null_mut();
    let device = rig.device().context().cu_device();
    // SAFETY: the prototype of cuda.h; the first argument is the address of a handle. The context
    // that is made belongs to what is returned.
    unsafe {
        let create = library.get::<Create>(b"cuCtxCreate_v2").unwrap();
        assert_eq!(create(&mut handle, 0, device), 0, "cuCtxCreate");
        CudaContext::from_raw_context(rig.ordinal(), device, handle).unwrap()
    }
}

fn tracked(rig: &Rig) -> Tracked<DirectCudaResource> {
    let streams = Arc::clone(rig.streams());
    Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap()
}

fn problem<T>(result: ResourceResult<T>) -> StreamProblem {
    match result.map(drop).unwrap_err() {
        ResourceError::StreamMisuse { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

fn write(rig: &Rig, resource: &dyn DeviceMemoryResource, block: &DeviceBlock, stream: StreamId) {
    let uses = [BlockUse::new(block.id(), Access::Write)];
    let tokens = resource.prepare_uses(&uses, stream).unwrap();
    rig.ops().fill_pattern(block, 0..BYTES, 7, stream).unwrap();
    resource.finish_uses(tokens).unwrap();
}

fn check(rig: &Rig, resource: &dyn DeviceMemoryResource, block: &DeviceBlock, stream: StreamId) {
    let uses = [BlockUse::new(block.id(), Access::Read)];
    let tokens = resource.prepare_uses(&uses, stream).unwrap();
    rig.ops().check_pattern(block, 0..BYTES, 7, stream, 0).unwrap();
    resource.finish_uses(tokens).unwrap();
}

#[test]
fn the_pools_own_streams_are_not_adopted() {
    let rig = Rig::new();
    let first = rig.stream();
    let leased = rig.stream();
    let [default, own] = [&first, &leased].map(|lease| Arc::clone(lease.stream()));
    let adopt = |stream: &Arc<CudaStream>| rig.streams().adopt(Arc::clone(stream));
    assert_eq!(problem(adopt(&default)), StreamProblem::OwnedByPool);
    assert_eq!(problem(adopt(&own)), StreamProblem::OwnedByPool);
    // SAFETY: the pool keeps its stream as long as it lives.
    let raw = unsafe { rig.streams().adopt_raw(own.cu_stream().cast(), ()) };
    assert_eq!(problem(raw), StreamProblem::OwnedByPool);
    drop((first, leased));
    assert_eq!(
        problem(adopt(&own)),
        StreamProblem::OwnedByPool,
        "also when its lease was returned"
    );
    // Another pool's is one made elsewhere.
    let config = StreamPoolConfig::new().with_max_streams(1);
    let other = dmr_streams::StreamPool::new(rig.device().clone(), config).unwrap();
    drop(other.adopt(own).unwrap());
    drop((other, default));
    rig.assert_clean();
}

/// Streams of two contexts cannot be ordered by the events of one, even on one device.
#[test]
fn a_stream_of_a_second_context_on_the_same_device_is_not_adopted() {
    let rig = Rig::new();
    let second = second_context(&rig);
    let foreign = second.new_stream().unwrap();
    let adopted = rig.streams().adopt(Arc::clone(&foreign));
    assert_eq!(problem(adopted), StreamProblem::OtherContext);
    // SAFETY: alive until the end of this test; that it is of another context is what is tested.
    let raw = unsafe { rig.streams().adopt_raw(foreign.cu_stream().cast(), ()) };
    assert_eq!(problem(raw), StreamProblem::OtherContext, "known by its handle only");
    drop((foreign, second));
    // A refusal takes no slot.
    let at_most = StreamPoolConfig::new().max_adopted;
    let streams: Vec<_> = (0..at_most).map(|_| rig.streams().adopt(self::foreign(&rig))).collect();
    assert!(streams.iter().all(Result::is_ok));
    drop(streams);
    rig.assert_clean();
}

#[test]
fn an_adopted_stream_is_ordered_with_the_pools_own() {
    let rig = Rig::new();
    let resource = tracked(&rig);
    let own = rig.stream();
    let adopted = rig.streams().adopt(foreign(&rig)).unwrap();
    let block = resource.allocate(BYTES, own.id(), AllocTag::UNTAGGED).unwrap();
    rig.delay(own.id());
    write(&rig, &resource, &block, own.id());
    check(&rig, &resource, &block, adopted.id());
    resource.deallocate(block).unwrap();
    let at_home = resource.allocate(BYTES, adopted.id(), AllocTag::UNTAGGED).unwrap();
    rig.delay(adopted.id());
    write(&rig, &resource, &at_home, adopted.id());
    check(&rig, &resource, &at_home, own.id());
    resource.deallocate(at_home).unwrap();
    resource.reap_pending().unwrap();
    drop((resource, own, adopted));
    rig.assert_clean();
}

#[test]
fn the_legacy_null_stream_is_used_only_by_name() {
    let rig = Rig::new();
    let resource = tracked(&rig);
    let null = rig.device().context().default_stream();
    assert_eq!(problem(rig.streams().adopt(null)), StreamProblem::LegacyDefault);
    let own = rig.stream();
    let legacy = rig.streams().adopt_legacy().unwrap();
    let block = resource.allocate(BYTES, legacy.id(), AllocTag::UNTAGGED).unwrap();
    rig.delay(legacy.id());
    write(&rig, &resource, &block, legacy.id());
    check(&rig, &resource, &block, own.id());
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    drop((resource, own, legacy));
    rig.assert_clean();
}

#[test]
fn the_per_thread_default_stream_is_always_refused() {
    let rig = Rig::new();
    let per_thread = rig.device().context().per_thread_stream();
    let error = rig.streams().adopt(per_thread).unwrap_err();
    assert!(error.to_string().contains("a different stream on each thread"), "{error}");
    rig.assert_clean();
}

#[test]
fn a_stream_is_adopted_once_at_a_time_and_keeps_its_slot() {
    let rig = Rig::new();
    let stream = foreign(&rig);
    let first = rig.streams().adopt(Arc::clone(&stream)).unwrap();
    assert_eq!(problem(rig.streams().adopt(Arc::clone(&stream))), StreamProblem::AlreadyAdopted);
    let id = first.id();
    drop(first);
    assert_eq!(problem(rig.streams().resolve(id)), StreamProblem::ReturnedLease);
    let again = rig.streams().adopt(stream).unwrap();
    assert_eq!(again.id().slot(), id.slot());
    assert_ne!(again.id(), id);
    drop(again);
    rig.assert_clean();
}

#[test]
fn adopted_streams_have_slots_of_their_own() {
    let streams = StreamPoolConfig::new().with_max_streams(1).with_max_adopted(1);
    let rig = Rig::with(RigConfig { streams, ..RigConfig::default() });
    let own = rig.stream();
    let adopted = rig.streams().adopt(foreign(&rig)).unwrap();
    let more = [rig.streams().acquire(), rig.streams().adopt(foreign(&rig))];
    for refused in more {
        assert!(matches!(refused, Err(ResourceError::Capacity { limit: 1, .. })));
    }
    drop((own, adopted));
    rig.assert_clean();
}

#[test]
fn a_retired_stream_is_stood_for_by_its_last_event() {
    let rig = Rig::new();
    let resource = tracked(&rig);
    let own = rig.stream();
    let stream = foreign(&rig);
    // SAFETY: destroyed below, after it was retired.
    let adopted = unsafe { rig.streams().adopt_raw(stream.cu_stream().cast(), ()) }.unwrap();
    let used = resource.allocate(BYTES, own.id(), AllocTag::UNTAGGED).unwrap();
    let at_home = resource.allocate(BYTES, adopted.id(), AllocTag::UNTAGGED).unwrap();
    rig.delay(adopted.id());
    write(&rig, &resource, &used, adopted.id());
    // On its home stream work needs no recording: the free comes after it.
    rig.ops().fill_pattern(&at_home, 0..BYTES, 7, adopted.id()).unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
    drop(stream);
    assert_eq!(problem(rig.streams().resolve(adopted.id())), StreamProblem::ReturnedLease);
    check(&rig, &resource, &used, own.id());
    for block in [used, at_home] {
        resource.deallocate(block).unwrap();
    }
    resource.reap_pending().unwrap();
    assert_eq!(resource.usage().outstanding(), 0);
    drop((resource, own, adopted));
    rig.assert_clean();
}

#[test]
fn the_pools_own_streams_are_not_given_up() {
    let rig = Rig::new();
    let own = rig.stream();
    let error = rig.streams().retire_stream(&own).unwrap_err();
    assert!(error.to_string().contains("the pool's own"), "{error}");
    drop(own);
    rig.assert_clean();
}
