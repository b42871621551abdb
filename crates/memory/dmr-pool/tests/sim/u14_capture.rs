//! U14: on a capturing stream the pool returns `StreamCapturing`, and a stream that captures lends
//! nothing that it would have to record an event for.

#![allow(unsafe_code, reason = "captures begin and end in the driver")]

use std::sync::Arc;

use cudarc::driver::{result, sys};
use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::StreamLease;
use dmr_testkit::Rig;

fn begin(stream: &StreamLease) {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the lease keeps the stream alive.
    unsafe { result::stream::begin_capture(stream.stream().cu_stream(), mode) }.unwrap();
}

fn end(stream: &StreamLease) {
    // SAFETY: the lease keeps the stream alive.
    unsafe { result::stream::end_capture(stream.stream().cu_stream()) }.unwrap();
}

fn pool(rig: &Rig) -> PoolResource<DirectCudaResource> {
    let upstream = DirectCudaResource::new(Arc::clone(rig.streams()));
    PoolResource::new(upstream, Arc::clone(rig.streams()), PoolConfig::fast()).unwrap()
}

#[test]
fn nothing_is_allocated_or_freed_on_a_capturing_stream() {
    let rig = Rig::simulated();
    let pool = pool(&rig);
    let stream = rig.stream();
    let block = pool.allocate(1000, stream.id(), AllocTag::UNTAGGED).unwrap();
    let before = pool.usage();
    begin(&stream);
    let refused = pool.allocate(1000, stream.id(), AllocTag::UNTAGGED).unwrap_err();
    assert!(matches!(refused, ResourceError::StreamCapturing { .. }), "{refused}");
    let refused = pool.deallocate(block).unwrap_err();
    assert!(matches!(refused.error, ResourceError::StreamCapturing { .. }), "{refused}");
    assert_eq!(pool.usage(), before);
    end(&stream);
    pool.deallocate(refused.block).unwrap();
}

#[test]
fn a_capturing_stream_is_passed_over_as_a_lender() {
    let rig = Rig::simulated();
    let pool = pool(&rig);
    let lender = rig.stream();
    let borrower = rig.stream();
    let block = pool.allocate(32 << 20, lender.id(), AllocTag::UNTAGGED).unwrap();
    pool.deallocate(block).unwrap();
    let reserved = pool.usage().reserved;
    begin(&lender);
    let block = pool.allocate(32 << 20, borrower.id(), AllocTag::UNTAGGED).unwrap();
    assert!(pool.usage().reserved > reserved, "it came from upstream");
    // The capture lives.
    end(&lender);
    pool.deallocate(block).unwrap();
}

/// The wait for the lender fails then, and the pool finds other memory: which the caller could not
/// use in its graph, nor the graph go on.
#[test]
fn an_allocation_whose_stream_begins_to_capture_meanwhile_is_refused() {
    let rig = Rig::simulated();
    let upstream = DirectCudaResource::new(Arc::clone(rig.streams()));
    let config = PoolConfig::fast().with_maximum_size(64 << 20);
    let pool = PoolResource::new(upstream, Arc::clone(rig.streams()), config).unwrap();
    let lender = rig.stream();
    let borrower = rig.stream();
    let block = pool.allocate(48 << 20, lender.id(), AllocTag::UNTAGGED).unwrap();
    rig.delay(lender.id());
    pool.deallocate(block).unwrap();
    let before = pool.usage();
    let refused = std::thread::scope(|scope| {
        let hold = rig.universe().hold_nth("cuStreamWaitEvent", 1);
        let allocated = scope.spawn(|| pool.allocate(48 << 20, borrower.id(), AllocTag::UNTAGGED));
        hold.wait_until_held();
        begin(&borrower);
        hold.release();
        allocated.join().unwrap()
    });
    let refused = refused.map(|block| block.bytes()).unwrap_err();
    assert!(matches!(refused, ResourceError::StreamCapturing { .. }), "{refused}");
    let after = pool.usage();
    assert_eq!((after.outstanding(), after.total_allocated), (0, before.total_allocated));
}
