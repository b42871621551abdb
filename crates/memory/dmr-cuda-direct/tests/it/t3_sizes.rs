//! T3: sizes that cannot be are clean errors; all others are exact.

use std::sync::Arc;

use dmr_core::error::SizeProblem;
use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, StreamId, Usage};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;

#[test]
fn impossible_sizes_are_refused_without_a_driver_call() {
    let rig = Rig::new();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let refused = |bytes| {
        let error = resource.allocate(bytes, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap_err();
        match error {
            ResourceError::InvalidSize { requested, problem, .. } if requested == bytes => problem,
            other => panic!("{other}"),
        }
    };
    let calls = || rig.simulator().map_or(0, |universe| universe.calls().total());
    let before = calls();
    assert_eq!(refused(0), SizeProblem::Zero);
    for k in [0, 1, 254] {
        assert_eq!(refused(usize::MAX - k), SizeProblem::Overflow, "usize::MAX - {k}");
    }
    let device_bytes = usize::try_from(rig.device().total_memory()).unwrap();
    for bytes in [device_bytes + 1, device_bytes * 2, usize::MAX - 255] {
        assert!(matches!(refused(bytes), SizeProblem::BeyondDevice { .. }), "{bytes}");
    }
    assert_eq!(calls(), before);
    assert_eq!(resource.usage(), Usage::default());
}

#[test]
fn a_size_that_the_device_has_but_not_free_is_out_of_memory_with_the_figures() {
    let rig = Rig::new();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let held = resource.allocate(1 << 20, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    let before = resource.usage();
    let bytes = usize::try_from(rig.device().total_memory()).unwrap();
    match resource.allocate(bytes, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap_err() {
        ResourceError::OutOfMemory { requested, free, total, live, .. } => {
            assert_eq!((requested, live), (bytes, 1 << 20));
            assert!(free < total && total > 0, "{free} of {total}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(resource.usage(), before);
    resource.deallocate(held).unwrap();
    drop(resource);
    rig.assert_clean();
}

#[test]
fn blocks_are_exact_and_aligned() {
    let rig = Rig::new();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    for bytes in [1, 255, 256, 257, 1000, 1 << 20] {
        let block = resource.allocate(bytes, StreamId::DEFAULT, AllocTag::new("exact")).unwrap();
        assert_eq!((block.bytes(), block.reserved_bytes()), (bytes, bytes));
        assert_eq!(block.ptr() % 256, 0);
        assert_eq!(block.alloc_stream(), rig.streams().default_stream());
        assert_eq!(block.tag().name(), "exact");
        resource.deallocate(block).unwrap();
    }
    drop(resource);
    rig.assert_clean();
}
