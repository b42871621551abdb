//! U13, U14: work that cannot be recorded is waited for, or its block is never freed; and nothing
//! is silently left out of a graph.

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use dmr_core::{Access, AllocTag, DeviceMemoryResource, DeviceOps, ResourceError, UseTrackingExt};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::{StreamLease, Tracked};
use dmr_testkit::Rig;

const BYTES: usize = 1024;

fn tracked(rig: &Rig) -> Tracked<DirectCudaResource> {
    let streams = Arc::clone(rig.streams());
    Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap()
}

#[test]
fn work_that_cannot_be_recorded_is_waited_for() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let block = resource.allocate(BYTES, a.id(), AllocTag::UNTAGGED).unwrap();
    for access in [Access::Write, Access::Read] {
        let window = resource.prepare_block_use(block.id(), a.id(), Access::Write).unwrap();
        rig.ops().fill_pattern(&block, 0..BYTES, 7, a.id()).unwrap();
        rig.universe().reset_calls();
        rig.universe().fail_nth("cuEventRecord", 1, 999);
        assert_eq!(resource.finish_uses(window), Ok(()));
        assert_eq!(rig.universe().calls().count("cuStreamSynchronize"), 1);
        // Nothing is left to wait for.
        let window = resource.prepare_block_use(block.id(), b.id(), access).unwrap();
        assert_eq!(rig.universe().calls().count("cuStreamWaitEvent"), 0);
        rig.ops().check_pattern(&block, 0..BYTES, 7, b.id(), 0).unwrap();
        resource.finish_uses(window).unwrap();
    }
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    drop((resource, a, b));
    rig.assert_clean();
}

#[test]
fn work_that_can_neither_be_recorded_nor_waited_for_keeps_its_block() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let block = resource.allocate(BYTES, a.id(), AllocTag::UNTAGGED).unwrap();
    let window = resource.prepare_block_use(block.id(), b.id(), Access::Write).unwrap();
    rig.ops().fill_pattern(&block, 0..BYTES, 7, b.id()).unwrap();
    rig.universe().fail_nth("cuEventRecord", 1, 999);
    rig.universe().fail_nth("cuStreamSynchronize", 1, 999);
    let error = resource.finish_uses(window).unwrap_err();
    assert!(matches!(error, ResourceError::Driver { call: "cuEventRecord", .. }), "{error}");
    // Still no event can be recorded: each use that depends on it is refused.
    rig.universe().fail_nth("cuEventRecord", 1, 999);
    assert!(resource.prepare_block_use(block.id(), a.id(), Access::Read).is_err());
    let window = resource.prepare_block_use(block.id(), a.id(), Access::Read).unwrap();
    rig.ops().check_pattern(&block, 0..BYTES, 7, a.id(), 0).unwrap();
    resource.finish_uses(window).unwrap();
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    assert_eq!(resource.usage().outstanding(), 0);
    drop((resource, a, b));
    rig.assert_clean();
}

#[test]
fn on_a_capturing_stream_every_call_is_refused() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let block = resource.allocate(BYTES, a.id(), AllocTag::UNTAGGED).unwrap();
    let open = resource.prepare_block_use(block.id(), b.id(), Access::Write).unwrap();
    rig.ops().fill_pattern(&block, 0..BYTES, 7, b.id()).unwrap();
    b.stream().begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    let capturing = ResourceError::stream_capturing(b.id());
    let prepared = resource.prepare_block_use(block.id(), b.id(), Access::Read);
    assert_eq!(prepared.unwrap_err(), capturing);
    let recorded = resource.record_block_use(&block, b.id());
    assert_eq!(recorded.unwrap_err(), capturing);
    // A window that was opened before the capture began: its work is not forgotten.
    assert_eq!(resource.finish_uses(open).unwrap_err(), capturing);
    let allocated = resource.allocate(BYTES, b.id(), AllocTag::UNTAGGED);
    assert_eq!(allocated.unwrap_err(), capturing);
    b.stream()
        .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
        .map(drop)
        .unwrap_or_default();
    let window = resource.prepare_block_use(block.id(), a.id(), Access::Read).unwrap();
    rig.ops().check_pattern(&block, 0..BYTES, 7, a.id(), 0).unwrap();
    resource.finish_uses(window).unwrap();
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    drop((resource, a, b));
    rig.assert_clean();
}

/// A free is work on the home stream, and a graph would hold it back until it is launched.
#[test]
fn a_free_is_refused_while_its_home_stream_captures() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [home, other] = [rig.stream(), rig.stream()];
    for user in [&home, &other] {
        let block = resource.allocate(BYTES, home.id(), AllocTag::UNTAGGED).unwrap();
        let window = resource.prepare_block_use(block.id(), user.id(), Access::Write).unwrap();
        rig.ops().fill_pattern(&block, 0..BYTES, 7, user.id()).unwrap();
        resource.finish_uses(window).unwrap();
        let id = block.id();
        let before = resource.usage();
        home.stream().begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let refused = resource.deallocate(block).unwrap_err();
        assert_eq!(refused.error, ResourceError::stream_capturing(home.id()));
        assert_eq!((refused.block.id(), resource.usage()), (id, before));
        end_capture(&home);
        // It is the caller's as before, for uses and for another try.
        let window = resource.prepare_block_use(id, other.id(), Access::Read).unwrap();
        rig.ops().check_pattern(&refused.block, 0..BYTES, 7, other.id(), 0).unwrap();
        resource.finish_uses(window).unwrap();
        resource.deallocate(refused.block).unwrap();
        resource.reap_pending().unwrap();
        assert_eq!(resource.usage().outstanding(), 0);
    }
    drop((resource, home, other));
    rig.assert_clean();
}

#[test]
fn no_stream_waits_for_an_event_that_a_producers_graph_would_swallow() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let block = resource.allocate(BYTES, a.id(), AllocTag::UNTAGGED).unwrap();
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    a.stream().begin_capture(relaxed).unwrap();
    // Fresh memory: an event would have to be recorded on `a`, inside its graph.
    let error = resource.prepare_block_use(block.id(), b.id(), Access::Write).unwrap_err();
    assert!(matches!(error, ResourceError::StreamCapturing { .. }), "{error}");
    end_capture(&a);
    let window = resource.prepare_block_use(block.id(), b.id(), Access::Write).unwrap();
    rig.ops().fill_pattern(&block, 0..BYTES, 7, b.id()).unwrap();
    resource.finish_uses(window).unwrap();
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    drop((resource, a, b));
    rig.assert_clean();
}

#[test]
fn a_second_stream_is_not_announced_into_the_firsts_graph() {
    let rig = Rig::simulated();
    let first = rig.stream();
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    first.stream().begin_capture(relaxed).unwrap();
    let error = rig.streams().acquire().unwrap_err();
    assert!(matches!(error, ResourceError::StreamCapturing { .. }), "{error}");
    end_capture(&first);
    let second = rig.streams().acquire().unwrap();
    drop((first, second));
    rig.assert_clean();
}

/// Ends the capture; what it captured is dropped.
fn end_capture(stream: &StreamLease) {
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    stream.stream().end_capture(flags).map(drop).unwrap_or_default();
}
