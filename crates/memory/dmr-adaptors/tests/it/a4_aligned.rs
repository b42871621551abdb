//! `AlignedResource` returns aligned blocks, counts the requested bytes, and loses no block.

#![cfg(feature = "aligned")]

use std::sync::Arc;

use crate::scripted::Scripted;
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::aligned::{AlignedLayer, AlignedResource};
use dmr_core::conformance::{Harness, check_forwarding};
use dmr_core::error::SizeProblem;
use dmr_core::{AllocTag, BlockState, DeviceBlock, DeviceMemoryResource, ResourceError};
use dmr_fake::{FakeHarness, FakeResource};
use proptest::prelude::*;

mod conformance_on_a_fake {
    use dmr_adaptors::ResourceLayer;
    use dmr_fake::FakeHarness;

    dmr_core::conformance_tests!(FakeHarness::wrapped(true, |fake, _| {
        super::to(4096).layer(fake)
    }));
}

mod conformance_without_tracking_twice_and_with_a_threshold {
    use dmr_adaptors::ResourceLayer;
    use dmr_fake::FakeHarness;

    dmr_core::conformance_tests!(FakeHarness::wrapped(false, |fake, _| {
        super::to(65_536).with_threshold(1000).layer(super::to(512).layer(fake))
    }));
}

const TAG: AllocTag = AllocTag::new("aligned");

fn to(alignment: usize) -> AlignedLayer {
    AlignedLayer::new(alignment).unwrap()
}

fn harness(layer: AlignedLayer) -> FakeHarness<AlignedResource<Arc<FakeResource>>> {
    FakeHarness::wrapped(true, |fake, _| layer.layer(fake))
}

#[test]
fn every_method_is_forwarded_but_growth_and_the_accounting_in_requested_bytes() {
    for tracks in [true, false] {
        let missed = check_forwarding(&FakeHarness::new(tracks), |spy| to(1024).layer(spy));
        let expected =
            "not forwarded exactly once: bytes_outstanding (0 calls), try_grow (0 calls)";
        assert_eq!(missed.unwrap_err(), expected);
    }
}

#[test]
fn a_stack_describes_itself_in_one_line() {
    let harness = harness(to(65_536));
    let text = format!("Aligned(64 KiB, {:?})", harness.fake());
    assert_eq!(harness.outermost().to_string(), text);
}

#[test]
fn an_alignment_is_a_power_of_two_and_at_least_256() {
    for alignment in [0, 1, 128, 255, 257, 768, 3 << 20, usize::MAX] {
        let error = AlignedLayer::new(alignment).unwrap_err();
        assert_eq!(error.alignment, alignment);
        assert!(error.to_string().contains("power of two"), "{error}");
    }
    for alignment in [256, 512, 1 << 20, 1 << 63] {
        assert!(AlignedLayer::new(alignment).is_ok());
    }
}

#[test]
fn sizes_that_overflow_with_the_padding_are_refused() {
    let harness = harness(to(1 << 20));
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    for bytes in [usize::MAX, usize::MAX - (1 << 20) + 257] {
        let error = resource.allocate(bytes, x, TAG).unwrap_err();
        let is_overflow = matches!(
            error,
            ResourceError::InvalidSize { requested, problem: SizeProblem::Overflow, .. }
                if requested == bytes
        );
        assert!(is_overflow, "{error}");
    }
    let huge = to(1 << 63).layer(Arc::clone(harness.fake()));
    assert!(huge.allocate(1, x, TAG).is_err());
    assert_eq!(harness.fake().usage().outstanding(), 0);
}

proptest! {
    #[test]
    fn every_block_is_aligned_apart_from_the_others_and_whole(
        shift in 8..18_u32,
        threshold in 0..3000_usize,
        sizes in prop::collection::vec(1..20_000_usize, 1..24),
    ) {
        let alignment = 1_usize << shift;
        let harness = harness(to(alignment).with_threshold(threshold));
        let resource = harness.outermost();
        let [x, _] = harness.streams();
        let mut blocks: Vec<DeviceBlock> = Vec::new();
        for (byte, bytes) in (1_u8..).zip(sizes) {
            let block = resource.allocate(bytes, x, TAG).unwrap();
            if bytes >= threshold {
                prop_assert_eq!(block.ptr() % alignment as u64, 0);
                prop_assert!(block.alignment() >= alignment);
            }
            prop_assert_eq!(block.bytes(), bytes);
            harness.fill(x, &block, byte).unwrap();
            blocks.push(block);
        }
        let requested: usize = blocks.iter().map(DeviceBlock::bytes).sum();
        let usage = resource.usage();
        prop_assert_eq!((usage.live, usage.total_allocated), (requested as u64, requested as u64));
        prop_assert!(usage.reserved >= harness.fake().usage().live);
        for (byte, block) in (1_u8..).zip(&blocks) {
            prop_assert_eq!(harness.check(x, block, byte).unwrap(), None);
        }
        for block in blocks {
            resource.deallocate(block).unwrap();
        }
        prop_assert_eq!(resource.usage().retired, requested as u64);
        prop_assert_eq!(resource.reap_pending().unwrap(), requested as u64);
        prop_assert_eq!(harness.fake().usage().outstanding(), 0);
        prop_assert_eq!(resource.usage().total_freed, requested as u64);
    }
}

#[test]
fn the_upstream_resource_counts_the_padding_and_small_blocks_have_none() {
    let harness = harness(to(4096).with_threshold(1000));
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let small = resource.allocate(999, x, TAG).unwrap();
    assert_eq!(harness.fake().usage().live, 999);
    let large = resource.allocate(1000, x, TAG).unwrap();
    assert_eq!(harness.fake().usage().live, 999 + 1000 + 4096 - 256);
    assert_eq!(resource.bytes_outstanding(), 1999);
    for block in [small, large] {
        resource.deallocate(block).unwrap();
    }
}

#[test]
fn a_block_that_the_upstream_resource_refuses_to_free_can_be_used_and_freed_later() {
    for threshold in [0, 2000] {
        let harness = FakeHarness::new(true);
        let [x, _] = harness.streams();
        let layer = to(8192).with_threshold(threshold);
        let resource = layer.layer(Scripted::new(Arc::clone(harness.fake())));
        let wrong = ResourceError::driver("cuMemFreeAsync", 999, "CUDA_ERROR_UNKNOWN", 0);
        // After another block, so that the address is not aligned by chance.
        let other = resource.allocate(300, x, TAG).unwrap();
        let mut block = resource.allocate(1001, x, TAG).unwrap();
        let id = block.id();
        let before = resource.usage();
        for _ in 0..2 {
            resource.upstream().fail("deallocate", wrong.clone());
            let refusal = resource.deallocate(block).unwrap_err();
            assert_eq!(refusal.error, wrong);
            block = refusal.block;
            assert_eq!((block.id(), block.bytes()), (id, 1001));
            assert_eq!(resource.usage(), before);
            assert_eq!(resource.upstream().calls().last(), Some(&"deallocate"));
            harness.fill(x, &block, 7).unwrap();
            assert_eq!(harness.check(x, &block, 7).unwrap(), None);
        }
        resource.deallocate(block).unwrap();
        resource.deallocate(other).unwrap();
        resource.reap_pending().unwrap();
        assert_eq!(resource.usage().outstanding(), 0);
        assert_eq!(harness.fake().usage().outstanding(), 0);
    }
}

#[test]
fn a_block_of_another_adaptor_on_the_same_resource_is_returned_with_an_error() {
    let harness = FakeHarness::new(true);
    let [x, _] = harness.streams();
    let one = to(4096).layer(Arc::clone(harness.fake()));
    let other = to(4096).layer(Arc::clone(harness.fake()));
    let foreign = [one.allocate(10, x, TAG).unwrap(), harness.fake().allocate(20, x, TAG).unwrap()];
    let returned = foreign.map(|block| {
        let refusal = other.deallocate(block).unwrap_err();
        assert!(matches!(refusal.error, ResourceError::ForeignBlock { .. }), "{}", refusal.error);
        refusal.block
    });
    assert_eq!(other.usage().total_freed, 0);
    let [first, second] = returned;
    one.deallocate(first).unwrap();
    harness.fake().deallocate(second).unwrap();
}

#[test]
fn a_part_of_an_aligned_block_is_refused_and_the_block_can_be_freed() {
    for threshold in [0, 100_000] {
        let harness = harness(to(4096).with_threshold(threshold));
        let resource = harness.outermost();
        let [x, _] = harness.streams();
        let block = resource.allocate(2048, x, TAG).unwrap();
        let (part, whole) = block.narrow(512, 1024).unwrap();
        let mut refusal = resource.deallocate(part).unwrap_err();
        assert!(matches!(refusal.error, ResourceError::PartOfBlock { .. }), "{}", refusal.error);
        let grown = resource.try_grow(&mut refusal.block, 2048);
        assert!(matches!(grown, Err(ResourceError::PartOfBlock { .. })), "{grown:?}");
        let block = whole.restore(refusal.block).unwrap();
        assert_eq!(resource.usage().live, 2048);
        resource.deallocate(block).unwrap();
        resource.reap_pending().unwrap();
        assert_eq!(resource.usage().outstanding(), 0);
    }
}

#[test]
fn the_resource_is_unwrapped_only_while_no_block_is_live() {
    let harness = FakeHarness::new(true);
    let [x, _] = harness.streams();
    let resource = to(512).layer(Arc::clone(harness.fake()));
    let block = resource.allocate(10, x, TAG).unwrap();
    let resource = resource.into_upstream().unwrap_err();
    let state = resource.deallocate(block).unwrap();
    assert!(state == BlockState::Retired && resource.into_upstream().is_ok());
}

#[test]
fn a_failed_reap_returns_its_error_and_blocks_that_were_freed_are_counted() {
    let harness = FakeHarness::new(true);
    let [x, _] = harness.streams();
    let resource = to(512).layer(Scripted::new(Arc::clone(harness.fake())));
    let block = resource.allocate(700, x, TAG).unwrap();
    resource.deallocate(block).unwrap();
    let wrong = ResourceError::driver("cuEventQuery", 999, "CUDA_ERROR_UNKNOWN", 0);
    resource.upstream().fail("reap_pending", wrong.clone());
    assert_eq!(resource.reap_pending().unwrap_err(), wrong);
    assert_eq!(resource.usage().retired, 700);
    // Freed by a call to the upstream resource.
    harness.fake().reap_pending().unwrap();
    assert_eq!(resource.reap_pending().unwrap(), 0, "this call did not free it");
    assert_eq!((resource.usage().retired, resource.usage().total_freed), (0, 700));
}
