//! A budget over the backends: what the device still needs stays charged, and a request that needs
//! it waits for it.
#![cfg(feature = "budget")]

use std::sync::Arc;

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::BudgetLayer;
use dmr_core::{AllocTag, BlockState, DeviceMemoryResource, ResourceError, UseTrackingExt};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_testkit::Rig;

const TAG: AllocTag = AllocTag::UNTAGGED;
const MIB: usize = 1 << 20;

#[test]
fn a_block_that_another_stream_uses_is_charged_until_that_is_done() {
    let rig = Rig::new();
    let backend = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let budget = BudgetLayer::new(4 * MIB as u64).layer(backend);
    let home = rig.stream();
    let user = rig.stream();
    for _ in 0..3 {
        let block = budget.allocate(3 * MIB, home.id(), TAG).unwrap();
        rig.delay(user.id());
        budget.record_block_use(&block, user.id()).unwrap();
        assert_eq!(budget.deallocate(block).unwrap(), BlockState::Retired);
        assert_eq!(budget.budget().pending_bytes(), 3 * MIB as u64);
        // It needs that memory, and waits for it.
        let block = budget.allocate(2 * MIB, home.id(), TAG).unwrap();
        assert_eq!(budget.budget().pending_bytes(), 0);
        assert_eq!(budget.budget().reserved_bytes(), budget.bytes_outstanding());
        budget.deallocate(block).unwrap();
    }
    rig.device().synchronize().unwrap();
    budget.reap_pending().unwrap();
    assert_eq!((budget.budget().reserved_bytes(), budget.bytes_outstanding()), (0, 0));
    drop((budget, home, user));
    rig.assert_clean();
}

#[test]
fn a_backend_that_frees_late_is_never_refused_what_it_gave_back() {
    let rig = Rig::new();
    let backend = DirectCudaResource::new(Arc::clone(rig.streams()));
    let budget = BudgetLayer::new(2 * MIB as u64).layer(backend);
    let stream = rig.stream();
    for i in 0..100 {
        // The second never fits before the first is freed.
        let block = budget.allocate(2 * MIB - i, stream.id(), TAG).unwrap();
        assert_eq!(budget.deallocate(block).unwrap(), BlockState::Retired);
        assert_eq!(budget.budget().reserved_bytes(), budget.bytes_outstanding());
    }
    budget.reap_pending().unwrap();
    assert_eq!((budget.budget().reserved_bytes(), budget.bytes_outstanding()), (0, 0));
    drop((budget, stream));
    rig.assert_clean();
}

#[test]
fn the_devices_own_pages_are_bounded_with_its_blocks() {
    let rig = Rig::new();
    let backend = VirtualCudaResource::new(Arc::clone(rig.streams()), VirtualConfig::new());
    let budget = BudgetLayer::new(8 * MIB as u64).layer(backend.unwrap());
    let stream = rig.stream();
    let pages = budget.virtual_memory().unwrap();
    let range = pages.reserve(1 << 30).unwrap();
    let base = range.base();
    let page = pages.granularity();
    let memory = pages.create(2 * page, TAG).unwrap();
    pages.map(&memory, base).unwrap();
    let block = budget.allocate(3 * MIB, stream.id(), TAG).unwrap();
    assert_eq!(budget.budget().reserved_bytes(), 2 * page + 3 * MIB as u64);
    let refused = pages.create(page, TAG).unwrap_err();
    assert!(matches!(refused, ResourceError::OutOfBudget { .. }), "{refused}");
    // Deallocated bytes make room at once.
    assert_eq!(budget.deallocate(block).unwrap(), BlockState::Retired);
    let more = pages.create(2 * page, TAG).unwrap();
    assert_eq!(budget.budget().reserved_bytes(), 4 * page);
    assert_eq!(budget.usage().reserved, 4 * page);
    let kept = pages.destroy(memory).unwrap_err();
    assert!(matches!(kept.error, ResourceError::StillMapped { .. }), "{kept}");
    assert_eq!(budget.budget().reserved_bytes(), 4 * page);
    pages.unmap(&kept.memory, base).unwrap();
    for memory in [kept.memory, more] {
        pages.destroy(memory).unwrap();
    }
    pages.release(range).unwrap();
    assert_eq!((budget.budget().reserved_bytes(), budget.usage().reserved), (0, 0));
    drop((budget, stream));
    rig.assert_clean();
}
