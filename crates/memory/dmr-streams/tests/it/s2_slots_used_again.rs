//! S2: the slot of a retired stream is used again, and no id of before names the stream that has it
//! now.

#![allow(unsafe_code, reason = "adopts raw streams, which is unsafe")]

use std::sync::Arc;

use cudarc::driver::CudaStream;
use dmr_core::error::StreamProblem;
use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError,
    ResourceResult, StreamId, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::{StreamLease, StreamPoolConfig, Tracked};
use dmr_testkit::rig::RigConfig;
use dmr_testkit::{HeldStream, Rig};

const BYTES: usize = 1 << 20;
const TAG: AllocTag = AllocTag::UNTAGGED;

/// A rig whose pool adopts this many streams at a time.
fn rig(max_adopted: usize) -> Rig {
    let streams = StreamPoolConfig::new().with_max_adopted(max_adopted);
    Rig::with(RigConfig { streams, ..RigConfig::default() })
}

fn tracked(rig: &Rig) -> Tracked<DirectCudaResource> {
    let streams = Arc::clone(rig.streams());
    Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap()
}

fn foreign(rig: &Rig) -> Arc<CudaStream> {
    rig.device().context().new_stream().unwrap()
}

fn adopt(rig: &Rig, stream: &CudaStream) -> ResourceResult<StreamLease> {
    // SAFETY: the tests keep the stream until its lease is retired.
    unsafe { rig.streams().adopt_raw(stream.cu_stream().cast(), ()) }
}

fn is_refused<T>(result: ResourceResult<T>) -> bool {
    matches!(result, Err(ResourceError::StreamMisuse { problem: StreamProblem::ReturnedLease, .. }))
}

fn write(rig: &Rig, resource: &dyn DeviceMemoryResource, block: &DeviceBlock, on: StreamId) {
    let tokens = resource.prepare_uses(&[BlockUse::new(block.id(), Access::Write)], on).unwrap();
    rig.ops().fill_pattern(block, 0..BYTES, 7, on).unwrap();
    resource.finish_uses(tokens).unwrap();
}

fn check(rig: &Rig, resource: &dyn DeviceMemoryResource, block: &DeviceBlock, on: StreamId) {
    let tokens = resource.prepare_uses(&[BlockUse::new(block.id(), Access::Read)], on).unwrap();
    rig.ops().check_pattern(block, 0..BYTES, 7, on, 0).unwrap();
    resource.finish_uses(tokens).unwrap();
}

#[test]
fn a_million_streams_are_adopted_and_retired_and_every_id_of_before_is_refused() {
    let rig = rig(3);
    let streams = [(); 2].map(|()| foreign(&rig));
    let mut before = Vec::new();
    let mut first = None;
    for cycle in 0..1_000_000 {
        let lease = adopt(&rig, &streams[cycle % 2]).unwrap();
        let id = lease.id();
        let permanent = rig.streams().permanent(id).unwrap();
        assert!(rig.streams().resolve(permanent).is_ok());
        assert_eq!(rig.streams().resolve(id).unwrap().cu_stream(), streams[cycle % 2].cu_stream());
        rig.streams().retire_stream(&lease).unwrap();
        drop(lease);
        first.get_or_insert([id, permanent]);
        before.push([id, permanent]);
        if before.len() > 8 {
            before.remove(0);
        }
        for stale in before.iter().chain(&first).flatten() {
            assert!(is_refused(rig.streams().resolve_id(*stale)), "{stale} after {cycle}");
        }
    }
    let lease = adopt(&rig, &streams[0]).unwrap();
    for stale in before.iter().chain(&first).flatten() {
        assert!(is_refused(rig.streams().resolve(*stale)));
        assert!(is_refused(rig.streams().enter(*stale)));
        assert!(is_refused(rig.streams().synchronize(*stale)));
        assert!(is_refused(tracked(&rig).allocate(BYTES, *stale, TAG).map(drop)));
    }
    rig.streams().retire_stream(&lease).unwrap();
    drop((lease, streams));
    rig.assert_clean();
}

/// The ledgers know a use by the slot of its stream. So what the next stream does comes after it
/// without a wait of its own.
#[test]
fn the_work_of_the_next_stream_comes_after_that_of_the_retired_one() {
    let rig = rig(1);
    let resource = tracked(&rig);
    let stream = foreign(&rig);
    let next = foreign(&rig);
    let adopted = adopt(&rig, &stream).unwrap();
    let at_home = resource.allocate(BYTES, adopted.id(), TAG).unwrap();
    let used = resource.allocate(BYTES, StreamId::DEFAULT, TAG).unwrap();
    // The driver loads kernels at their first launch, which would wait for a held stream.
    write(&rig, &resource, &used, adopted.id());
    check(&rig, &resource, &used, adopted.id());
    let held = HeldStream::hold(rig.streams(), &adopted);
    write(&rig, &resource, &used, adopted.id());
    // On its home stream work needs no recording.
    rig.ops().fill_pattern(&at_home, 0..BYTES, 7, adopted.id()).unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
    drop(adopted);
    let adopted = adopt(&rig, &next).unwrap();
    check(&rig, &resource, &used, adopted.id());
    check(&rig, &resource, &at_home, adopted.id());
    drop((held, stream));
    for block in [used, at_home] {
        resource.deallocate(block).unwrap();
    }
    resource.reap_pending().unwrap();
    assert_eq!(resource.usage().outstanding(), 0);
    rig.streams().retire_stream(&adopted).unwrap();
    drop((resource, adopted, next));
    rig.assert_clean();
}

/// An allocation has no event of its own: the number of the next use stands for it.
#[test]
fn an_allocation_of_the_next_stream_is_not_done_with_the_work_of_the_retired_one() {
    let rig = rig(1);
    let resource = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let stream = foreign(&rig);
    let next = foreign(&rig);
    let adopted = adopt(&rig, &stream).unwrap();
    let block = resource.allocate(BYTES, adopted.id(), TAG).unwrap();
    write(&rig, &resource, &block, adopted.id());
    resource.deallocate(block).unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
    rig.streams().synchronize_all().unwrap();
    drop((stream, adopted));
    let adopted = adopt(&rig, &next).unwrap();
    rig.delay(adopted.id());
    let block = resource.allocate(BYTES, adopted.id(), TAG).unwrap();
    let other = rig.stream();
    write(&rig, &resource, &block, other.id());
    check(&rig, &resource, &block, adopted.id());
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
    drop((resource, adopted, other, next));
    rig.assert_clean();
}

#[test]
fn a_slot_is_free_when_its_stream_is_retired_and_the_lease_is_dropped() {
    let rig = rig(1);
    let stream = foreign(&rig);
    let next = foreign(&rig);
    let is_full = || match rig.streams().adopt(Arc::clone(&next)) {
        Err(error @ ResourceError::Capacity { limit: 1, .. }) => {
            assert!(error.to_string().contains("`retire_stream`"), "{error}");
            true
        }
        adopted => adopted.map(|_| false).unwrap(),
    };
    let adopted = adopt(&rig, &stream).unwrap();
    assert!(is_full(), "adopted");
    drop(adopted);
    assert!(is_full(), "adopted, with no lease");
    let again = adopt(&rig, &stream).unwrap();
    rig.streams().retire_stream(&again).unwrap();
    assert!(is_full(), "retired, with a lease");
    drop(again);
    assert!(!is_full());
    drop((stream, next));
    rig.assert_clean();
}

#[test]
fn the_pool_drops_a_retired_stream() {
    let rig = rig(1);
    let stream = foreign(&rig);
    let adopted = rig.streams().adopt(Arc::clone(&stream)).unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
    drop(adopted);
    assert_eq!(Arc::strong_count(&stream), 1);
    drop(stream);
    rig.assert_clean();
}
