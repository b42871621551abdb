//! U3: events are recycled: those of a block's uses serve others once they are done, and what has
//! become of the block does not matter.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, StreamId, UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::uses::Dependencies;
use dmr_streams::{StreamLease, Tracked};
use dmr_testkit::Rig;

const BLOCKS: usize = 50;
const ROUNDS: usize = 20;

fn use_on(resource: &impl DeviceMemoryResource, blocks: &[DeviceBlock], on: StreamId) {
    for block in blocks {
        let uses = [BlockUse::new(block.id(), Access::Write)];
        resource.finish_uses(resource.prepare_uses(&uses, on).unwrap()).unwrap();
    }
}

/// Events made while blocks of two homes in turn are used elsewhere, each by a use of its own, and
/// freed: in the first rounds, and in as many later ones.
fn events_made(home_comes_after: bool) -> [u64; 2] {
    let rig = Rig::simulated();
    let streams = Arc::clone(rig.streams());
    let resource = Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap();
    let [user, first, second] = [rig.stream(), rig.stream(), rig.stream()];
    let round = |home: &StreamLease| {
        let allocate = |_| resource.allocate(256, home.id(), AllocTag::UNTAGGED).unwrap();
        let blocks: Vec<_> = (0..BLOCKS).map(allocate).collect();
        use_on(&resource, &blocks, user.id());
        if home_comes_after {
            // Waits for the user; nothing is retired then.
            rig.streams().uses().wait_for(home.id(), &all_of(&rig, user.id())).unwrap();
        }
        for block in blocks {
            resource.deallocate(block).unwrap();
        }
        resource.reap_pending().unwrap();
    };
    let made = [0; 2].map(|_| {
        rig.universe().reset_calls();
        (0..ROUNDS).for_each(|_| [&first, &second].map(round).into_iter().collect());
        rig.universe().calls().count("cuEventCreate")
    });
    drop((resource, user, first, second));
    rig.assert_clean();
    made
}

fn all_of(rig: &Rig, stream: StreamId) -> Dependencies {
    Dependencies::on(stream, rig.streams().uses().submitted(stream))
}

#[test]
fn retired_blocks_keep_no_events_when_they_are_gone() {
    let [first, later] = events_made(false);
    assert!(first >= BLOCKS as u64, "{first}");
    assert_eq!(later, 0, "more events, after {first}");
}

#[test]
fn blocks_that_are_freed_at_once_keep_no_events_either() {
    let [first, later] = events_made(true);
    assert!(first >= BLOCKS as u64, "{first}");
    assert_eq!(later, 0, "more events, after {first}");
}
