//! D7: pinned memory is pooled in segments: few host allocations, whole segments returned, kinds,
//! shortage.

#![allow(unsafe_code, reason = "the host reads and writes pinned memory; flags are the driver's")]

use std::collections::VecDeque;
use std::sync::Arc;

use crate::pinned_support::{
    LARGE, TAG, assert_the_host_wrote_last, device_writes, host_allocations, host_writes, lazy,
    pinned,
};
use cudarc::driver::sys;
use dmr_core::{BlockState, DeviceMemoryResource, ResourceError, StreamId};
use dmr_pinned::{PinnedKind, PinnedMemory, PinnedPool, PinnedResource};
use dmr_sim::{Policy, Universe};
use dmr_testkit::{Rig, SplitMix64};

#[test]
fn a_hundred_buffers_are_one_host_allocation() {
    let rig = Rig::simulated();
    let home = rig.stream();
    let all = [(); 100].map(|()| PinnedMemory::new(rig.streams(), 1000, home.id()).unwrap());
    assert_eq!(host_allocations(&rig), 1);
    drop((all, home));
    rig.assert_clean();
}

#[test]
fn a_hundred_thousand_buffers_of_mixed_sizes_soon_need_no_host_allocation() {
    let rig = Rig::simulated();
    let streams = [rig.stream(), rig.stream(), rig.stream()];
    let mut random = SplitMix64::new(14);
    let mut live: VecDeque<PinnedMemory> = VecDeque::new();
    let mut at_half = 0;
    for count in 0..100_000 {
        let below = [256, 4096, 65_536, 1 << 20, 4 << 20][(random.next_u64() % 5) as usize];
        let bytes = 1 + (random.next_u64() % below) as usize;
        let stream = &streams[(random.next_u64() % 3) as usize];
        let memory = PinnedMemory::new(rig.streams(), bytes, stream.id()).unwrap();
        if count % 64 == 0 {
            device_writes(&rig, memory.block(), 1, &streams[(random.next_u64() % 3) as usize]);
        }
        live.push_back(memory);
        if live.len() > 64 {
            live.pop_front();
        }
        if count == 50_000 {
            at_half = host_allocations(&rig);
        }
    }
    let all = host_allocations(&rig);
    assert!(all < 300 && all - at_half <= at_half / 10, "{at_half} and {all} host allocations");
    drop((live, streams));
    rig.assert_clean();
}

#[test]
fn a_hundred_thousand_buffers_at_once_are_in_a_few_segments() {
    let rig = Rig::simulated();
    let home = rig.stream();
    let mut random = SplitMix64::new(15);
    let mut bytes = || 256 + (random.next_u64() % (4096 - 255)) as usize;
    let mut allocate = || PinnedMemory::new(rig.streams(), bytes(), home.id()).unwrap();
    let all: Vec<PinnedMemory> = (0..100_000).map(|_| allocate()).collect();
    let usage = PinnedPool::of(rig.streams()).usage();
    assert!(host_allocations(&rig) <= 12, "{}", host_allocations(&rig));
    assert!(usage.reserved < usage.live / 4 * 5 + (32 << 20), "{usage:?}");
    drop(all);
    assert_eq!(PinnedPool::of(rig.streams()).reap_pending(), Ok(usage.live));
    assert_eq!(
        PinnedPool::of(rig.streams()).trim_to(0),
        Ok(usage.reserved),
        "all chunks have merged again"
    );
    drop(home);
    rig.assert_clean();
}

#[test]
fn an_allocation_polls_before_it_adds_a_segment() {
    let rig = Rig::simulated();
    let [home, away] = [rig.stream(), rig.stream()];
    let resource = pinned(&rig);
    for _ in 0..10 {
        let block = resource.allocate(LARGE, home.id(), TAG).unwrap();
        device_writes(&rig, &block, 1, &away);
        rig.device().synchronize().unwrap();
        assert_eq!(resource.deallocate(block).unwrap(), BlockState::Retired);
    }
    assert_eq!(host_allocations(&rig), 1);
    drop((home, away, resource));
    rig.assert_clean();
}

#[test]
fn a_trim_returns_whole_segments_and_no_memory_that_is_in_use() {
    let rig = lazy();
    let home = rig.stream();
    let resource = pinned(&rig);
    let small = resource.allocate(1000, home.id(), TAG).unwrap();
    let [live, used, free] = [(); 3].map(|()| resource.allocate(LARGE, home.id(), TAG).unwrap());
    device_writes(&rig, &used, 1, &home);
    host_writes(&live, 7);
    resource.deallocate(used).unwrap();
    resource.deallocate(free).unwrap();
    let reserved = resource.usage().reserved;
    assert_eq!((resource.trim_to(0), resource.usage().reserved), (Ok(0), reserved));
    rig.device().synchronize().unwrap();
    assert_eq!(resource.trim_to(reserved), Ok(0), "no more is reserved than may be kept");
    assert_eq!(resource.trim_to(reserved - 1), Ok(LARGE as u64));
    assert_eq!(resource.trim_to(0), Ok(LARGE as u64));
    assert_eq!(rig.universe().calls().count("cuMemFreeHost"), 2);
    // SAFETY: a live block.
    assert_eq!(unsafe { *(live.ptr() as *const u8) }, 7);
    resource.deallocate(live).unwrap();
    resource.deallocate(small).unwrap();
    resource.reap_pending().unwrap();
    assert_eq!(resource.trim_to(0), Ok((2 << 20) + LARGE as u64));
    assert_eq!(resource.usage().reserved, 0);
    drop((home, resource));
    rig.assert_clean();
}

#[test]
fn each_kind_has_segments_of_its_own_and_its_flags() {
    let rig = Rig::simulated();
    let home = rig.stream();
    let blocks = PinnedKind::ALL.map(|kind| {
        let resource = PinnedResource::new(Arc::clone(rig.streams()), kind);
        let block = resource.allocate(1000, home.id(), TAG).unwrap();
        let mut flags = 0;
        rig.device().bind().unwrap();
        // SAFETY: the driver writes a number; the address is of pinned memory.
        unsafe { sys::cuMemHostGetFlags(&mut flags, block.ptr() as *mut _).result().unwrap() };
        (resource, block, flags)
    });
    // Portable and mapped; and write-combined.
    assert_eq!([blocks[0].2, blocks[1].2], [1 | 2, 1 | 2 | 4]);
    assert_eq!(host_allocations(&rig), 2);
    for (resource, block, _) in blocks {
        assert_eq!((resource.usage().live, resource.usage().reserved), (1000, 2 << 20));
        resource.deallocate(block).unwrap();
    }
    drop(home);
    rig.assert_clean();
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

#[test]
fn a_host_without_memory_to_lock_gets_unused_segments_back_before_an_allocation_fails() {
    let rig = lazy();
    let home = rig.stream();
    let resource = pinned(&rig);
    let block = resource.allocate(LARGE, home.id(), TAG).unwrap();
    device_writes(&rig, &block, 1, &home);
    resource.deallocate(block).unwrap();
    // Waits for the block, whose segment is too small, and returns it.
    rig.universe().reset_calls();
    rig.universe().fail_nth("cuMemHostAlloc", 1, OUT_OF_MEMORY);
    let larger = resource.allocate(3 * LARGE, home.id(), TAG).unwrap();
    assert_eq!(rig.universe().calls().count("cuMemFreeHost"), 1);
    assert_eq!(resource.usage().reserved, 3 * LARGE as u64);
    // A failed call changes nothing.
    let before = resource.usage();
    for nth in 1..=2 {
        rig.universe().fail_nth("cuMemHostAlloc", nth, OUT_OF_MEMORY);
    }
    let refused = resource.allocate(LARGE, home.id(), TAG).unwrap_err();
    assert!(matches!(refused, ResourceError::Driver { .. }), "{refused}");
    assert_eq!(resource.usage(), before);
    resource.deallocate(larger).unwrap();
    drop((home, resource));
    rig.assert_clean();
}

#[test]
fn where_no_memory_can_be_locked_an_allocation_waits_for_memory_that_the_device_uses() {
    let rig = lazy();
    let home = rig.stream();
    let resource = pinned(&rig);
    let block = resource.allocate(LARGE, home.id(), TAG).unwrap();
    let at = block.ptr();
    // More work than the polls let the lazy device do.
    for _ in 0..100 {
        device_writes(&rig, &block, 1, &home);
    }
    resource.deallocate(block).unwrap();
    rig.universe().reset_calls();
    for nth in 1..=2 {
        rig.universe().fail_nth("cuMemHostAlloc", nth, OUT_OF_MEMORY);
    }
    let again = resource.allocate(LARGE, home.id(), TAG).unwrap();
    assert_eq!((again.ptr(), host_allocations(&rig)), (at, 1), "the second call is not made");
    assert_the_host_wrote_last(&rig, &again, 2);
    rig.universe().clear_faults();
    resource.deallocate(again).unwrap();
    drop((home, resource));
    rig.assert_clean();
}

#[test]
fn segments_with_memory_in_flight_are_freed_after_the_last_owner_of_the_streams_has_gone() {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let rig = Rig::in_universe(&universe);
    let streams = [rig.stream(), rig.stream()];
    let buffers: Vec<PinnedMemory> = (0..40)
        .map(|nth| {
            let home = streams[nth % 2].id();
            let memory = PinnedMemory::new(rig.streams(), 100_000 * (1 + nth % 13), home).unwrap();
            device_writes(&rig, memory.block(), 1, &streams[nth / 2 % 2]);
            memory
        })
        .collect();
    let segments = host_allocations(&rig);
    assert!(segments > 4, "{segments}");
    drop((buffers, streams, rig));
    assert_eq!(universe.calls().count("cuMemFreeHost"), 0, "nothing is done");
    dmr_pinned::reap_orphaned_pinned().unwrap();
    assert_eq!(universe.calls().count("cuMemFreeHost"), segments);
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}

#[test]
fn sizes_that_no_segment_has_are_refused() {
    let rig = Rig::simulated();
    for (bytes, stream) in [(0, StreamId::DEFAULT), (usize::MAX, StreamId::DEFAULT)] {
        let refused = pinned(&rig).allocate(bytes, stream, TAG).unwrap_err();
        assert!(matches!(refused, ResourceError::InvalidSize { .. }), "{refused}");
    }
    assert_eq!(host_allocations(&rig), 0);
    rig.assert_clean();
}
