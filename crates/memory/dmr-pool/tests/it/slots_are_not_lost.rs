//! Slots of the use table go back to where they came from: resources come and go on one pool of
//! streams, and the table does not grow.

use std::sync::Arc;

use dmr_core::{Access, AllocTag, BlockState, DeviceBlock, DeviceMemoryResource, UseTrackingExt};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::{StreamLease, Tracked};
use dmr_testkit::Rig;

const ROUNDS: usize = 100;
/// Of one resource and stream: all together stay below what a stream takes at once.
const BLOCKS: usize = 10;

fn direct(rig: &Rig) -> DirectCudaResource {
    DirectCudaResource::new(Arc::clone(rig.streams()))
}

fn asynchronous(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

fn tracked(rig: &Rig) -> Tracked<DirectCudaResource> {
    Tracked::new(direct(rig), Arc::clone(rig.streams())).unwrap()
}

/// So small that streams live on each other's memory.
fn pool(rig: &Rig) -> PoolResource<DirectCudaResource> {
    let config = PoolConfig::fast().with_growth(2 << 20).with_maximum_size(2 << 20);
    PoolResource::new(direct(rig), Arc::clone(rig.streams()), config).unwrap()
}

/// Blocks of every stream, some of which another one uses, and one of them beyond its free.
fn live_and_die(resource: &impl DeviceMemoryResource, streams: &[StreamLease]) {
    for (number, home) in streams.iter().enumerate() {
        let other = &streams[(number + 1) % streams.len()];
        let allocate = |nth: usize| {
            let bytes = 256 << ((nth + number) % 6);
            resource.allocate(bytes, home.id(), AllocTag::UNTAGGED).unwrap()
        };
        let mut blocks: Vec<DeviceBlock> = (0..BLOCKS).map(allocate).collect();
        for block in blocks.iter().step_by(3) {
            let token = resource.prepare_block_use(block.id(), other.id(), Access::Write).unwrap();
            resource.finish_uses(token).unwrap();
        }
        let last = blocks.pop().unwrap();
        let token = resource.prepare_block_use(last.id(), other.id(), Access::Read).unwrap();
        assert_eq!(resource.deallocate(last).unwrap(), BlockState::Retired);
        for block in blocks {
            resource.deallocate(block).unwrap();
        }
        resource.finish_uses(token).unwrap();
    }
}

/// The slots that the table has given after each of many rounds.
fn given<R: DeviceMemoryResource>(streams: usize, make: impl Fn(&Rig) -> R) -> Vec<usize> {
    let rig = Rig::new();
    let streams: Vec<_> = (0..streams).map(|_| rig.stream()).collect();
    // Of a resource that stays.
    let other = asynchronous(&rig);
    let stays = other.allocate(256, streams[0].id(), AllocTag::UNTAGGED).unwrap();
    let after_a_round = |_| {
        let resource = make(&rig);
        live_and_die(&resource, &streams);
        live_and_die(&resource, &streams);
        resource.reap_pending().unwrap();
        assert_eq!(resource.bytes_outstanding(), 0);
        drop(resource);
        rig.streams().uses().given_slots()
    };
    let given = (0..ROUNDS).map(after_a_round).collect();
    other.deallocate(stays).unwrap();
    drop((other, streams));
    rig.assert_clean();
    given
}

fn assert_no_growth(given: &[usize]) {
    assert!(given.iter().all(|slots| *slots == given[0]), "{given:?}");
}

#[test]
fn an_async_resource_returns_each_streams_slots_to_it() {
    assert_no_growth(&given(5, asynchronous));
}

#[test]
fn a_tracked_resource_returns_each_streams_slots_to_it() {
    assert_no_growth(&given(5, tracked));
}

#[test]
fn a_pool_returns_each_streams_slots_to_it() {
    assert_no_growth(&given(5, pool));
}

#[test]
fn a_resource_that_stays_puts_its_next_blocks_into_the_slots_of_the_last() {
    fn play<R: DeviceMemoryResource>(make: impl Fn(&Rig) -> R) {
        let rig = Rig::new();
        let streams: Vec<_> = (0..5).map(|_| rig.stream()).collect();
        let resource = make(&rig);
        let after_a_round = |_| {
            live_and_die(&resource, &streams);
            resource.reap_pending().unwrap();
            rig.streams().uses().given_slots()
        };
        assert_no_growth(&(0..ROUNDS).map(after_a_round).collect::<Vec<_>>());
        drop((resource, streams));
        rig.assert_clean();
    }
    play(asynchronous);
    play(tracked);
    play(pool);
}

/// The first stream's memory is all that there is, and the others' blocks are in it.
#[test]
fn a_pool_returns_the_slots_of_lent_memory_to_the_streams_that_they_came_from() {
    let make = |rig: &Rig| {
        let pool = pool(rig);
        let home = rig.streams().default_stream();
        let all = pool.allocate(2 << 20, home, AllocTag::UNTAGGED).unwrap();
        pool.deallocate(all).unwrap();
        pool
    };
    assert_no_growth(&given(5, make));
}
