//! Fills and checks of patterns: every phase, every edge, and the first wrong byte.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, DeviceOps, PatternMismatch, ResourceError};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;

const PATTERN: u32 = 0xD4C3_B2A1;

fn on_a_block(bytes: usize, test: impl FnOnce(&Rig, &dmr_core::DeviceBlock, dmr_core::StreamId)) {
    let rig = Rig::new();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let stream = rig.stream();
    let block = resource.allocate(bytes, stream.id(), AllocTag::new("patterns")).unwrap();
    test(&rig, &block, stream.id());
    resource.deallocate(block).unwrap();
    drop((resource, stream));
    rig.assert_clean();
}

#[test]
fn what_was_filled_is_what_a_check_finds() {
    for bytes in [1, 2, 3, 4, 5, 255, 256, 257, 4096, 100_003] {
        on_a_block(bytes, |rig, block, stream| {
            rig.ops().fill_pattern(block, 0..bytes, PATTERN, stream).unwrap();
            rig.ops().check_pattern(block, 0..bytes, PATTERN, stream, 1).unwrap();
            assert_eq!(rig.ops().collect().unwrap(), [], "{bytes} bytes");
        });
    }
}

#[test]
fn a_range_keeps_the_blocks_phase_wherever_it_starts_and_ends() {
    const BYTES: usize = 72;
    on_a_block(BYTES, |rig, block, stream| {
        let ops = rig.ops();
        for start in 0..18 {
            for end in start..start + 46 {
                ops.fill_pattern(block, 0..BYTES, !PATTERN, stream).unwrap();
                ops.fill_pattern(block, start..end, PATTERN, stream).unwrap();
                let what = (start * 100 + end) as u64;
                ops.check_pattern(block, 0..start, !PATTERN, stream, what).unwrap();
                ops.check_pattern(block, start..end, PATTERN, stream, what).unwrap();
                ops.check_pattern(block, end..BYTES, !PATTERN, stream, what).unwrap();
            }
        }
        assert_eq!(ops.collect().unwrap(), []);
    });
}

#[test]
fn the_first_wrong_byte_is_reported_from_the_blocks_start() {
    const BYTES: usize = 1_000;
    on_a_block(BYTES, |rig, block, stream| {
        let ops = rig.ops();
        for wrong in (0..36).chain([500, 975, 991, 992, 998, 999]) {
            for start in [0, 1, 2, 3, 4, 15, 16, 17] {
                ops.fill_pattern(block, 0..BYTES, PATTERN, stream).unwrap();
                ops.fill_pattern(block, wrong..wrong + 1, !PATTERN, stream).unwrap();
                // A second, later one is not the first.
                ops.fill_pattern(block, BYTES - 1..BYTES, !PATTERN, stream).unwrap();
                ops.check_pattern(block, start..BYTES, PATTERN, stream, 7).unwrap();
                let offset = if wrong >= start { wrong } else { BYTES - 1 };
                assert_eq!(ops.collect().unwrap(), [PatternMismatch { key: 7, offset }]);
            }
        }
    });
}

/// More bytes than the threads of a launch check at once.
#[test]
fn a_long_range_is_checked_to_its_last_byte() {
    const BYTES: usize = (17 << 20) + 5;
    const WRONG: [usize; 2] = [BYTES - 1, (16 << 20) + 3];
    on_a_block(BYTES, |rig, block, stream| {
        let ops = rig.ops();
        ops.fill_pattern(block, 0..BYTES, PATTERN, stream).unwrap();
        ops.check_pattern(block, 1..BYTES, PATTERN, stream, 9).unwrap();
        for offset in WRONG {
            ops.fill_pattern(block, offset..offset + 1, !PATTERN, stream).unwrap();
            ops.check_pattern(block, 1..BYTES, PATTERN, stream, offset as u64).unwrap();
        }
        let found = WRONG.map(|offset| PatternMismatch { key: offset as u64, offset });
        assert_eq!(ops.collect().unwrap(), found);
    });
}

#[test]
fn mismatches_come_in_the_order_of_submission_and_once() {
    on_a_block(64, |rig, block, stream| {
        let ops = rig.ops();
        ops.fill_pattern(block, 0..64, PATTERN, stream).unwrap();
        for (key, pattern) in [(5, 0), (9, PATTERN), (3, 0), (4, 0)] {
            ops.check_pattern(block, 0..64, pattern, stream, key).unwrap();
        }
        let keys: Vec<_> = ops.collect().unwrap().iter().map(|found| found.key).collect();
        assert_eq!(keys, [5, 3, 4]);
        assert_eq!(ops.collect().unwrap(), []);
        // The slots that held a verdict hold none for the checks that come next.
        for key in 0..8 {
            ops.check_pattern(block, 0..64, PATTERN, stream, key).unwrap();
        }
        assert_eq!(ops.collect().unwrap(), []);
    });
}

#[test]
fn more_checks_than_there_are_result_slots_lose_no_verdict() {
    const CHECKS: u64 = (1 << 16) + 100;
    on_a_block(4, |rig, block, stream| {
        let ops = rig.ops();
        ops.fill_pattern(block, 0..4, PATTERN, stream).unwrap();
        for key in 0..CHECKS {
            let wrong = key == 3 || key == CHECKS - 1;
            ops.check_pattern(block, 0..4, if wrong { 0 } else { PATTERN }, stream, key).unwrap();
        }
        let keys: Vec<_> = ops.collect().unwrap().iter().map(|found| found.key).collect();
        assert_eq!(keys, [3, CHECKS - 1]);
    });
}

#[test]
fn a_check_on_any_stream_is_waited_for() {
    on_a_block(64, |rig, block, _| {
        let ops = rig.ops();
        let other = rig.stream();
        rig.delay(&other);
        ops.fill_pattern(block, 0..64, PATTERN, other.id()).unwrap();
        ops.check_pattern(block, 0..64, !PATTERN, other.id(), 1).unwrap();
        assert_eq!(ops.collect().unwrap(), [PatternMismatch { key: 1, offset: 0 }]);
    });
}

#[test]
fn threads_check_at_the_same_time() {
    on_a_block(4096, |rig, block, stream| {
        let ops = rig.ops();
        ops.fill_pattern(block, 0..4096, PATTERN, stream).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                scope.spawn(move || {
                    for round in 0..100 {
                        let wrong = round == 50;
                        let pattern = if wrong { 0 } else { PATTERN };
                        ops.check_pattern(block, 0..4096, pattern, stream, thread).unwrap();
                    }
                });
            }
        });
        let mut keys: Vec<_> = ops.collect().unwrap().iter().map(|found| found.key).collect();
        keys.sort_unstable();
        assert_eq!(keys, [0, 1, 2, 3]);
    });
}

#[test]
fn a_range_outside_the_block_is_refused_before_anything_is_submitted() {
    on_a_block(64, |rig, block, stream| {
        for range in [0..65, 64..65, usize::MAX - 1..usize::MAX] {
            let fill = rig.ops().fill_pattern(block, range.clone(), 0, stream).unwrap_err();
            assert!(matches!(fill, ResourceError::OutOfBounds { bytes: 64, .. }), "{fill}");
            let check = rig.ops().check_pattern(block, range, 0, stream, 0).unwrap_err();
            assert!(matches!(check, ResourceError::OutOfBounds { bytes: 64, .. }), "{check}");
        }
    });
}
