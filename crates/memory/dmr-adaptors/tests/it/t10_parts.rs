//! T10: a part of a block is refused by every layer, also where the block is a part already, and
//! the whole can be freed.
#![cfg(all(feature = "aligned", feature = "budget", feature = "debug-guard", feature = "logging"))]

use std::sync::Arc;

use dmr_adaptors::ResourceBuilder;
use dmr_adaptors::aligned::AlignedLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer};
use dmr_adaptors::guard::DebugGuardLayer;
use dmr_adaptors::logging::{InMemorySink, LoggingLayer};
use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError,
    UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_testkit::Rig;

const TAG: AllocTag = AllocTag::new("rows");
const BYTES: usize = 4096;

fn refused(resource: &dyn DeviceMemoryResource, part: DeviceBlock) -> DeviceBlock {
    let before = resource.usage();
    let ptr = part.ptr();
    let bytes = part.bytes();
    let mut refusal = resource.deallocate(part).unwrap_err();
    assert!(matches!(refusal.error, ResourceError::PartOfBlock { .. }), "{}", refusal.error);
    let grown = resource.try_grow(&mut refusal.block, 2 * BYTES);
    assert!(matches!(grown, Err(ResourceError::PartOfBlock { .. })), "{grown:?}");
    assert_eq!((refusal.block.ptr(), refusal.block.bytes()), (ptr, bytes));
    assert_eq!(resource.usage(), before);
    refusal.block
}

/// Narrows a block, narrows the part, and checks that both are refused and the block is freed.
fn parts_are_refused(resource: &dyn DeviceMemoryResource, rig: &Rig) {
    let home = rig.stream();
    for (offset, bytes) in [(0, 256), (256, 256), (256, BYTES - 256), (0, BYTES)] {
        let block = resource.allocate(BYTES, home.id(), TAG).unwrap();
        let id = block.id();
        let depth = block.part_depth();
        let (part, whole) = block.narrow(offset, bytes).unwrap();
        let part = refused(resource, part);
        let (inner, outer) = part.narrow(0, 256).unwrap();
        let inner = refused(resource, inner);
        let part = outer.restore(inner).unwrap();
        let block = whole.restore(refused(resource, part)).unwrap();
        assert_eq!((block.id(), block.part_depth()), (id, depth));
        assert_eq!(resource.usage().live, BYTES as u64);
        rig.ops().fill_pattern(&block, 0..BYTES, 7, home.id()).unwrap();
        resource.deallocate(block).unwrap();
        resource.reap_pending().unwrap();
        assert_eq!(resource.usage().outstanding(), 0);
    }
}

fn direct(rig: &Rig) -> DirectCudaResource {
    DirectCudaResource::new(Arc::clone(rig.streams()))
}

fn driver_pool(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

#[test]
fn a_part_of_a_guarded_block_is_refused_and_no_count_wraps() {
    let rig = Rig::new();
    let layer = DebugGuardLayer::new(Arc::<dmr_streams::PatternOps>::clone(rig.ops()));
    let guard = ResourceBuilder::new(driver_pool(&rig)).layer(layer).build();
    parts_are_refused(&guard, &rig);
    assert_eq!(guard.violations(), []);
    assert_eq!(guard.upstream().bytes_outstanding(), 0);
    drop(guard);
    rig.assert_clean();
}

#[test]
fn an_aligned_block_is_taken_at_its_depth_and_at_no_other() {
    for threshold in [0, 1 << 20] {
        let rig = Rig::new();
        let layer = AlignedLayer::new(4096).unwrap().with_threshold(threshold);
        let aligned = ResourceBuilder::new(driver_pool(&rig)).layer(layer).build();
        parts_are_refused(&aligned, &rig);
        assert_eq!(aligned.upstream().bytes_outstanding(), 0);
        drop(aligned);
        rig.assert_clean();
    }
}

/// The block that the guard allocates is a part of the block that the layer below it allocates,
/// which is a part of the backend's.
#[test]
fn parts_of_parts_are_refused_through_a_stack() {
    let rig = Rig::new();
    let budget = Budget::new(1 << 20);
    let guard = DebugGuardLayer::new(Arc::<dmr_streams::PatternOps>::clone(rig.ops()));
    let stack = ResourceBuilder::new(driver_pool(&rig))
        .layer(AlignedLayer::new(4096).unwrap())
        .layer(guard)
        .layer(BudgetLayer::on(&budget))
        .layer(LoggingLayer::new(Arc::new(InMemorySink::new())))
        .build();
    parts_are_refused(&stack, &rig);
    assert_eq!(budget.reserved_bytes(), 0);
    drop(stack);
    rig.assert_clean();
}

#[test]
fn a_budget_without_room_refuses_to_grow_a_part_as_one_with_room_does() {
    for limit in [BYTES as u64, 1 << 20] {
        let rig = Rig::new();
        let budget = Budget::new(limit);
        let stack = ResourceBuilder::new(driver_pool(&rig)).layer(BudgetLayer::on(&budget)).build();
        parts_are_refused(&stack, &rig);
        assert_eq!(budget.reserved_bytes(), 0);
    }
}

#[test]
fn a_tracked_resource_takes_the_parts_that_the_resource_inside_allocates() {
    let rig = Rig::new();
    let aligned =
        ResourceBuilder::new(direct(&rig)).layer(AlignedLayer::new(4096).unwrap()).build();
    let tracked = Tracked::new(aligned, Arc::clone(rig.streams())).unwrap();
    parts_are_refused(&tracked, &rig);
    // Also inside of a window, where the resource inside sees the block late.
    let home = rig.stream();
    let other = rig.stream();
    let block = tracked.allocate(BYTES, home.id(), TAG).unwrap();
    assert_eq!(block.part_depth(), 1);
    let window =
        tracked.prepare_uses(&[BlockUse::new(block.id(), Access::Read)], other.id()).unwrap();
    let (part, whole) = block.narrow(0, 256).unwrap();
    let block = whole.restore(refused(&tracked, part)).unwrap();
    tracked.deallocate(block).unwrap();
    tracked.finish_uses(window).unwrap();
    tracked.reap_pending().unwrap();
    assert_eq!(tracked.usage().outstanding(), 0);
    // A block of the resource inside is no part of a block of this one.
    let stranger = tracked.upstream().allocate(BYTES, home.id(), TAG).unwrap();
    let refused = tracked.deallocate(stranger).unwrap_err();
    assert!(matches!(refused.error, ResourceError::ForeignBlock { .. }), "{}", refused.error);
    tracked.upstream().deallocate(refused.block).unwrap();
    drop((tracked, home, other));
    rig.assert_clean();
}

#[test]
fn a_part_that_a_layer_allocated_is_refused_by_the_resource_inside() {
    let rig = Rig::new();
    let home = rig.stream();
    let layer = DebugGuardLayer::new(Arc::<dmr_streams::PatternOps>::clone(rig.ops()));
    let guard = ResourceBuilder::new(driver_pool(&rig)).layer(layer).build();
    let block = guard.allocate(BYTES, home.id(), TAG).unwrap();
    let block = refused(guard.upstream(), block);
    guard.deallocate(block).unwrap();
    guard.reap_pending().unwrap();
    assert_eq!(guard.usage().outstanding(), 0);
    drop((guard, home));
    rig.assert_clean();
}
