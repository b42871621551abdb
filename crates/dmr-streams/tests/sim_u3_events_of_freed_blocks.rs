//! U3: events are recycled: those of a block's uses are free for others when the block is gone,
//! whatever becomes of its slot.

use std::sync::Arc;

use dmr_core::{Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_streams::uses::Carried;
use dmr_testkit::Rig;

const BLOCKS: usize = 50;

fn use_on(resource: &impl DeviceMemoryResource, blocks: &[DeviceBlock], on: StreamId) {
    for block in blocks {
        let uses = [BlockUse::new(block.id(), Access::Write)];
        resource.finish_uses(resource.prepare_uses(&uses, on).unwrap()).unwrap();
    }
}

/// Events made while blocks of one home are used elsewhere, each by a use of its own, and freed:
/// for a home whose slots are new, and for another whose are.
fn events_made(home_comes_after: bool) -> [u64; 2] {
    let rig = Rig::simulated();
    let streams = Arc::clone(rig.streams());
    let resource = Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap();
    let [user, first, second] = [rig.stream(), rig.stream(), rig.stream()];
    let made = [&first, &second].map(|home| {
        rig.universe().reset_calls();
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
        rig.universe().calls().count("cuEventCreate")
    });
    drop((resource, user, first, second));
    rig.assert_clean();
    made
}

fn all_of(rig: &Rig, stream: StreamId) -> Carried {
    Carried::of(stream, rig.streams().uses().submitted(stream))
}

#[test]
fn a_retired_block_keeps_no_event_when_it_is_gone() {
    // Those of the uses, and for each free one that stands for its home.
    let [first, second] = events_made(false);
    assert!(first >= 2 * BLOCKS as u64, "{first}");
    assert!(second <= BLOCKS as u64 + 3, "{second} events more, after {first}");
}

#[test]
fn a_block_that_is_freed_at_once_keeps_no_event_either() {
    let [first, second] = events_made(true);
    assert!(first >= BLOCKS as u64, "{first}");
    assert!(second <= 3, "{second} events more, after {first}");
}
