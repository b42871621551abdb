//! The fake's device operations: patterns by offset, in the order of the streams, as late as
//! possible.

use std::sync::Arc;

use dmr_core::conformance::Harness;
use dmr_core::{AllocTag, DeviceMemoryResource, DeviceOps, ResourceError, UseTrackingExt};
use dmr_fake::FakeHarness;

const WORD: u32 = 0x4433_2211;

/// Returns key and offset of each mismatch that the checks of `at` find.
fn wrong(harness: &FakeHarness, at: impl Fn(&dyn DeviceOps)) -> Vec<(u64, usize)> {
    let ops = harness.ops();
    at(&**ops);
    ops.collect().unwrap().iter().map(|mismatch| (mismatch.key, mismatch.offset)).collect()
}

#[test]
fn a_pattern_is_laid_by_the_offset_in_the_block() {
    let harness = FakeHarness::new(false);
    let [stream, _] = harness.streams();
    let block = harness.resource().allocate(64, stream, AllocTag::UNTAGGED).unwrap();
    let found = wrong(&harness, |ops| {
        ops.fill_pattern(&block, 0..64, WORD, stream).unwrap();
        ops.fill_pattern(&block, 7..33, WORD, stream).unwrap();
        ops.check_pattern(&block, 0..64, WORD, stream, 1).unwrap();
        ops.check_pattern(&block, 13..30, WORD, stream, 2).unwrap();
        ops.check_pattern(&block, 64..64, WORD, stream, 3).unwrap();
    });
    assert_eq!(found, []);
    let found = wrong(&harness, |ops| {
        ops.fill_pattern(&block, 21..22, 0, stream).unwrap();
        ops.check_pattern(&block, 5..64, WORD, stream, 4).unwrap();
        ops.check_pattern(&block, 22..64, WORD, stream, 5).unwrap();
        ops.check_pattern(&block, 0..21, WORD, stream, 6).unwrap();
        ops.check_pattern(&block, 21..22, WORD, stream, 7).unwrap();
    });
    assert_eq!(found, [(4, 21), (7, 21)]);
    assert_eq!(wrong(&harness, |_| {}), [], "a mismatch is returned once");
}

#[test]
fn a_check_runs_after_its_own_stream_and_after_nothing_that_it_does_not_wait_for() {
    let harness = FakeHarness::new(false);
    let [stream, other] = harness.streams();
    let block = harness.resource().allocate(8, stream, AllocTag::UNTAGGED).unwrap();
    let ops = harness.ops();
    ops.fill_pattern(&block, 0..8, WORD, stream).unwrap();
    ops.check_pattern(&block, 0..8, WORD, other, 1).unwrap();
    ops.check_pattern(&block, 0..8, WORD, stream, 2).unwrap();
    ops.fill_pattern(&block, 0..8, 0, stream).unwrap();
    let found = ops.collect().unwrap();
    assert_eq!(found.len(), 1, "the other stream was not ordered after the fill: {found:?}");
    assert_eq!(found[0].key, 1);
    ops.synchronize(stream).unwrap();
    assert_eq!(wrong(&harness, |ops| ops.check_pattern(&block, 0..8, 0, other, 3).unwrap()), []);
}

#[test]
fn a_range_outside_the_block_and_a_stream_of_others_are_refused() {
    let harness = FakeHarness::new(false);
    let [stream, _] = harness.streams();
    let block = harness.resource().allocate(100, stream, AllocTag::UNTAGGED).unwrap();
    let ops = harness.ops();
    let outside = ops.fill_pattern(&block, 90..101, WORD, stream);
    assert!(matches!(outside, Err(ResourceError::OutOfBounds { .. })), "{outside:?}");
    for stream in [harness.foreign_stream(), harness.returned_stream()] {
        for refused in [
            ops.fill_pattern(&block, 0..1, WORD, stream),
            ops.check_pattern(&block, 0..1, WORD, stream, 0),
            ops.synchronize(stream),
        ] {
            assert!(matches!(refused, Err(ResourceError::StreamMisuse { .. })), "{refused:?}");
        }
    }
    assert_eq!(ops.collect(), Ok(Vec::new()));
}

#[test]
fn a_harness_is_around_what_was_made_of_the_fake() {
    let harness = FakeHarness::wrapped(true, |fake, ops| {
        assert_eq!(format!("{ops:?}"), "FakeOps");
        Box::new(fake) as Box<dyn DeviceMemoryResource>
    });
    assert!(harness.resource().supports_block_use_tracking());
    assert_eq!(format!("{:?}", harness.outermost()), "Fake");
    assert_eq!(Arc::strong_count(harness.fake()), 2);
}
