//! U2, U3, U11: what a use costs the driver, and what is remembered of it.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, StreamId,
    UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_testkit::Rig;

const BYTES: usize = 1024;

fn tracked(rig: &Rig) -> Tracked<DirectCudaResource> {
    let streams = Arc::clone(rig.streams());
    Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap()
}

fn launch(
    rig: &Rig,
    resource: &dyn DeviceMemoryResource,
    stream: StreamId,
    access: Access,
    blocks: &[&DeviceBlock],
) {
    let uses: Vec<_> = blocks.iter().map(|block| BlockUse::new(block.id(), access)).collect();
    let tokens = resource.prepare_uses(&uses, stream).unwrap();
    for (key, block) in blocks.iter().enumerate() {
        if access.writes() {
            rig.ops().fill_pattern(block, 0..BYTES, 7, stream).unwrap();
        } else {
            rig.ops().check_pattern(block, 0..BYTES, 7, stream, key as u64).unwrap();
        }
    }
    resource.finish_uses(tokens).unwrap();
}

fn records_and_waits(rig: &Rig) -> (u64, u64) {
    let calls = rig.universe().calls();
    assert_eq!(calls.count("cuEventCreate"), 0, "events are recycled, not created");
    (calls.count("cuEventRecord"), calls.count("cuStreamWaitEvent"))
}

/// Blocks written on one stream, by a launch that has made the events it needs.
fn written(
    rig: &Rig,
    resource: &dyn DeviceMemoryResource,
    stream: StreamId,
    blocks: usize,
) -> Vec<DeviceBlock> {
    let tag = AllocTag::UNTAGGED;
    let blocks: Vec<_> =
        (0..blocks).map(|_| resource.allocate(BYTES, stream, tag).unwrap()).collect();
    launch(rig, resource, stream, Access::Write, &blocks.iter().collect::<Vec<_>>());
    blocks
}

#[test]
fn a_launch_records_one_event_and_waits_once_for_each_producer() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b, c] = [rig.stream(), rig.stream(), rig.stream()];
    let of_a = written(&rig, &resource, a.id(), 5);
    let of_b = written(&rig, &resource, b.id(), 3);
    // Makes the event that `c` records from then on.
    launch(&rig, &resource, c.id(), Access::Read, &[]);
    let warm = written(&rig, &resource, c.id(), 1);
    rig.universe().reset_calls();
    let all: Vec<_> = of_a.iter().chain(&of_b).collect();
    launch(&rig, &resource, c.id(), Access::Read, &all);
    let calls = rig.universe().calls();
    assert_eq!((calls.count("cuEventRecord"), calls.count("cuStreamWaitEvent")), (1, 2));
    for block in of_a.into_iter().chain(of_b).chain(warm) {
        resource.deallocate(block).unwrap();
    }
    drop((resource, a, b, c));
    rig.assert_clean();
}

#[test]
fn what_a_stream_has_waited_for_it_does_not_wait_for_again() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b, c] = [rig.stream(), rig.stream(), rig.stream()];
    let of_a = written(&rig, &resource, a.id(), 2);
    launch(&rig, &resource, b.id(), Access::Read, &[&of_a[0]]);
    let of_b = written(&rig, &resource, b.id(), 1);
    launch(&rig, &resource, c.id(), Access::Read, &[&of_b[0]]);
    rig.universe().reset_calls();
    // Directly: `b` has waited for the launch that wrote both blocks of `a`.
    launch(&rig, &resource, b.id(), Access::Read, &[&of_a[1]]);
    assert_eq!(rig.universe().calls().count("cuStreamWaitEvent"), 0);
    // Through another stream: `c` has waited for `b`, which had waited for `a`.
    launch(&rig, &resource, c.id(), Access::Read, &[&of_a[0], &of_a[1]]);
    assert_eq!(rig.universe().calls().count("cuStreamWaitEvent"), 0);
    for block in of_a.into_iter().chain(of_b) {
        resource.deallocate(block).unwrap();
    }
    drop((resource, a, b, c));
    rig.assert_clean();
}

#[test]
fn sixty_four_reads_from_four_streams_are_remembered_as_four() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let leases: Vec<_> = (0..4).map(|_| rig.stream()).collect();
    let blocks = written(&rig, &resource, leases[0].id(), 1);
    for read in 0..64 {
        let reader = leases[read % 4].id();
        launch(&rig, &resource, reader, Access::Read, &[&blocks[0]]);
    }
    // And the write before them.
    assert!(rig.streams().uses().recorded_uses() <= 5);
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    drop((resource, leases));
    rig.assert_clean();
}

#[test]
fn events_are_recycled() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let blocks = written(&rig, &resource, a.id(), 1);
    let round = || {
        launch(&rig, &resource, a.id(), Access::Write, &[&blocks[0]]);
        launch(&rig, &resource, b.id(), Access::Read, &[&blocks[0]]);
    };
    for _ in 0..200 {
        round();
    }
    rig.universe().reset_calls();
    for _ in 0..100 {
        round();
    }
    let (records, waits) = records_and_waits(&rig);
    assert_eq!(records, 200);
    assert!(waits <= 200, "{waits}");
    // One for each 64 events of a stream.
    let queries = rig.universe().calls().count("cuEventQuery");
    assert!(queries <= 2 * (100 / 64 + 1), "{queries}");
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    drop((resource, a, b));
    rig.assert_clean();
}

#[test]
fn on_a_single_stream_nothing_is_recorded() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let only = rig.stream();
    rig.universe().reset_calls();
    for _ in 0..10 {
        for block in written(&rig, &resource, only.id(), 3) {
            launch(&rig, &resource, only.id(), Access::Read, &[&block]);
            resource.deallocate(block).unwrap();
        }
    }
    resource.reap_pending().unwrap();
    let calls = rig.universe().calls();
    for call in ["cuEventRecord", "cuStreamWaitEvent", "cuEventCreate", "cuEventQuery"] {
        assert_eq!(calls.count(call), 0, "{call}");
    }
    drop((resource, only));
    rig.assert_clean();
}

#[test]
fn one_event_stands_for_all_uses_before_the_second_stream() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let first = rig.stream();
    let blocks = written(&rig, &resource, first.id(), 8);
    rig.universe().reset_calls();
    let second = rig.stream();
    assert_eq!(rig.universe().calls().count("cuEventRecord"), 1);
    rig.universe().reset_calls();
    let all: Vec<_> = blocks.iter().collect();
    launch(&rig, &resource, second.id(), Access::ReadWrite, &all);
    let calls = rig.universe().calls();
    assert_eq!((calls.count("cuStreamWaitEvent"), calls.count("cuEventRecord")), (1, 1));
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    drop((resource, first, second));
    rig.assert_clean();
}
