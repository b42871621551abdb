//! Whatever driver call of a check or of its collection fails, no verdict is lost or invented.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, DeviceOps, ResourceResult, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::PatternOps;
use dmr_testkit::{Rig, for_each_driver_call};

const INVALID_VALUE: i32 = 1;

/// The call again, if it failed: one call fails in each run.
fn insist<T>(mut call: impl FnMut() -> ResourceResult<T>) -> T {
    call().or_else(|_| call()).expect("only one driver call fails")
}

#[test]
fn a_failed_call_can_be_repeated_and_every_verdict_arrives_once() {
    let prepare = |rig: &Rig| {
        let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
        let block = resource.allocate(64, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
        (PatternOps::new(Arc::clone(rig.streams())).unwrap(), resource, block)
    };
    let failed = for_each_driver_call(INVALID_VALUE, prepare, |_, (ops, resource, block)| {
        let stream = StreamId::DEFAULT;
        insist(|| ops.fill_pattern(&block, 1..63, 7, stream));
        for round in 0..2 {
            for (key, pattern) in [(1, 7), (2, 8), (3, 7), (4, 9)] {
                insist(|| ops.check_pattern(&block, 1..63, pattern, stream, key + 10 * round));
            }
            let found: Vec<_> = insist(|| ops.collect()).iter().map(|found| found.key).collect();
            assert_eq!(found, [2 + 10 * round, 4 + 10 * round]);
        }
        assert_eq!(ops.collect().unwrap(), []);
        resource.deallocate(block).unwrap();
    });
    assert!(failed > 30, "{failed} calls were failed");
}

#[test]
fn what_was_collected_half_way_is_returned_by_the_next_collect() {
    let rig = Rig::simulated();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let block = resource.allocate(64, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    rig.ops().fill_pattern(&block, 0..64, 7, StreamId::DEFAULT).unwrap();
    rig.ops().check_pattern(&block, 0..64, 8, StreamId::DEFAULT, 1).unwrap();
    // The last step of a collection: the results are made ready for the checks that follow.
    for _ in 0..2 {
        rig.universe().fail_nth("cuMemsetD8Async", 1, INVALID_VALUE);
        assert!(rig.ops().collect().is_err());
    }
    rig.ops().check_pattern(&block, 0..64, 7, StreamId::DEFAULT, 2).unwrap();
    let found: Vec<_> = rig.ops().collect().unwrap().iter().map(|found| found.key).collect();
    assert_eq!(found, [1]);
    resource.deallocate(block).unwrap();
    drop(resource);
    rig.assert_clean();
}
