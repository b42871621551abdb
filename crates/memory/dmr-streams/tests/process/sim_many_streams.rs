//! U1, U2: what many streams cost. What a stream has waited for is remembered for 32 others; more
//! cost a wait and never leave one out.

#![allow(unsafe_code, reason = "counts what is allocated on the host heap")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, StreamId,
    UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::{StreamPoolConfig, Tracked};
use dmr_testkit::{Rig, RigConfig};

const BYTES: usize = 256;

/// Counts the bytes on the host heap.
struct Counting;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
}

/// Bytes that this thread has allocated and not freed.
fn live() -> usize {
    LIVE.get()
}

// SAFETY: every call goes to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.set(LIVE.get().wrapping_add(layout.size()));
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get().wrapping_sub(layout.size()));
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn rig(streams: usize) -> Rig {
    let streams = StreamPoolConfig::new().with_max_streams(streams).with_max_adopted(0);
    Rig::with(RigConfig { streams, simulated: true, ..RigConfig::default() })
}

fn tracked(rig: &Rig) -> Tracked<DirectCudaResource> {
    let streams = Arc::clone(rig.streams());
    Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap()
}

fn block(resource: &dyn DeviceMemoryResource, home: StreamId) -> DeviceBlock {
    resource.allocate(BYTES, home, AllocTag::UNTAGGED).unwrap()
}

fn write(rig: &Rig, resource: &dyn DeviceMemoryResource, on: StreamId, block: &DeviceBlock) {
    let window = resource.prepare_block_use(block.id(), on, Access::Write).unwrap();
    rig.ops().fill_pattern(block, 0..BYTES, 7, on).unwrap();
    resource.finish_uses(window).unwrap();
}

/// Reads the blocks in one launch; returns how many waits that needed.
fn read(
    rig: &Rig,
    resource: &dyn DeviceMemoryResource,
    on: StreamId,
    blocks: &[&DeviceBlock],
) -> u64 {
    let before = rig.universe().calls().count("cuStreamWaitEvent");
    let uses: Vec<_> = blocks.iter().map(|block| BlockUse::new(block.id(), Access::Read)).collect();
    let tokens = resource.prepare_uses(&uses, on).unwrap();
    for block in blocks {
        rig.ops().check_pattern(block, 0..BYTES, 7, on, 0).unwrap();
    }
    resource.finish_uses(tokens).unwrap();
    rig.universe().calls().count("cuStreamWaitEvent") - before
}

#[test]
fn two_streams_that_collide_cost_a_wait_and_never_leave_one_out() {
    let _alone = crate::ALONE.lock();
    let rig = rig(40);
    let resource = tracked(&rig);
    let leases: Vec<_> = (0..40).map(|_| rig.stream()).collect();
    // Slots 1 and 33 have the same place in what a stream remembers.
    let [first, second, reader, third] = [1, 33, 2, 3].map(|slot| leases[slot].id());
    assert_eq!((first.slot(), second.slot()), (1, 33));
    let blocks = [block(&resource, first), block(&resource, second)];
    let late = block(&resource, second);
    // Loads the kernels, which the simulated host waits for.
    write(&rig, &resource, reader, &blocks[0]);
    read(&rig, &resource, reader, &[&blocks[0]]);
    rig.device().synchronize().unwrap();

    write(&rig, &resource, first, &blocks[0]);
    write(&rig, &resource, second, &blocks[1]);
    assert_eq!(read(&rig, &resource, reader, &[&blocks[0]]), 1);
    assert_eq!(read(&rig, &resource, reader, &[&blocks[0]]), 0, "the reader has waited for it");
    assert_eq!(read(&rig, &resource, reader, &[&blocks[1]]), 1, "slot 33 has not been waited for");
    assert!(read(&rig, &resource, reader, &[&blocks[0], &blocks[1]]) <= 1);

    // Through the reader's event, which covers what the reader remembers and no more.
    write(&rig, &resource, second, &late);
    let of_reader = block(&resource, reader);
    write(&rig, &resource, reader, &of_reader);
    read(&rig, &resource, third, &[&of_reader]);
    assert_eq!(read(&rig, &resource, third, &[&late]), 1);
    read(&rig, &resource, third, &[&blocks[0], &blocks[1]]);
    for block in [late, of_reader].into_iter().chain(blocks) {
        resource.deallocate(block).unwrap();
    }
    resource.reap_pending().unwrap();
    drop((resource, leases));
    rig.assert_clean();
}

#[test]
fn a_pool_for_thousands_of_streams_takes_no_more_memory_for_each_stream_and_event() {
    let _alone = crate::ALONE.lock();
    const STREAMS: usize = 4_000;
    const EVENTS: usize = 64;
    // Two streams are made: what the simulator remembers grows with them, and is not counted.
    let before = live();
    let rig = rig(STREAMS);
    let each = (live() - before) / STREAMS;
    assert!(each <= 2 << 10, "{each} bytes for each stream");

    let resource = tracked(&rig);
    let [writer, reader] = [rig.stream(), rig.stream()];
    let blocks: Vec<_> = (0..EVENTS).map(|_| block(&resource, writer.id())).collect();
    rig.delay(reader.id());
    let before = live();
    for block in &blocks {
        let window = resource.prepare_block_use(block.id(), reader.id(), Access::Read).unwrap();
        resource.finish_uses(window).unwrap();
    }
    assert!(rig.universe().calls().count("cuEventCreate") >= EVENTS as u64);
    let each = (live() - before) / EVENTS;
    assert!(each <= 4 << 10, "{each} bytes for each launch and its event");
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    resource.reap_pending().unwrap();
    drop((resource, writer, reader));
    rig.assert_clean();
}
