//! In steady state the library allocates nothing on the host heap: not for memory, not for a
//! launch, not for a wait.

#![cfg(all(feature = "direct", feature = "pool"))]
#![allow(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use dmr::prelude::*;
use dmr_core::{Access, BlockUse};
use dmr_testkit::Rig;

struct Counting;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything goes to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !dmr_sim::is_inside_driver_call() {
            let _ = ALLOCATED.try_with(|count| count.set(count.get() + 1));
        }
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns the host allocations of a round once everything has been as full as it gets.
fn in_steady_state(mut round: impl FnMut()) -> u64 {
    for _ in 0..200 {
        round();
    }
    let before = ALLOCATED.get();
    for _ in 0..100 {
        round();
    }
    ALLOCATED.get() - before
}

fn resources(rig: &Rig) -> [(&'static str, Arc<dyn DeviceMemoryResource>); 3] {
    let streams = || Arc::clone(rig.streams());
    let direct = DirectCudaResource::new(streams());
    let pages = VirtualCudaResource::new(streams(), VirtualConfig::new()).unwrap();
    [
        ("pool", Arc::new(PoolResource::new(pages, streams(), PoolConfig::fast()).unwrap())),
        ("async", Arc::new(AsyncCudaResource::new(streams(), AsyncConfig::new()).unwrap())),
        ("tracked", Arc::new(Tracked::new(direct, streams()).unwrap())),
    ]
}

#[test]
fn allocating_and_freeing_on_one_stream_allocates_nothing() {
    let rig = Rig::simulated();
    let stream = rig.stream();
    for (name, resource) in resources(&rig) {
        let allocated = in_steady_state(|| {
            let block = resource.allocate(4096, stream.id(), AllocTag::UNTAGGED).unwrap();
            resource.deallocate(block).unwrap();
        });
        assert_eq!(allocated, 0, "{name}");
    }
}

#[test]
fn launches_on_two_streams_allocate_nothing() {
    let rig = Rig::simulated();
    let [a, b] = [rig.stream(), rig.stream()];
    for (name, resource) in resources(&rig) {
        let block = resource.allocate(4096, a.id(), AllocTag::UNTAGGED).unwrap();
        let launch = |stream: &StreamLease, access| {
            let uses = [BlockUse::new(block.id(), access)];
            let tokens = resource.prepare_uses(&uses, stream.id()).unwrap();
            resource.finish_uses(tokens).unwrap();
        };
        let allocated = in_steady_state(|| {
            launch(&a, Access::Write);
            launch(&b, Access::Read);
        });
        assert_eq!(allocated, 0, "{name}");
        resource.deallocate(block).unwrap();
    }
}
