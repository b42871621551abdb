//! D7: pinned memory is pooled, allocated again only when its uses are done, and returned in whole segments.

#![allow(unsafe_code, reason = "the host reads and writes pinned memory; flags are the driver's")]

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::sys;
use dmr_core::{
    Access, AllocTag, BlockState, BlockUse, ByteRange, DeviceBlock, DeviceMemoryResource,
    DeviceOps, ResourceError, StreamId,
};
use dmr_sim::{Policy, ReportKind, Universe};
use dmr_streams::{PinnedKind, PinnedMemory, PinnedResource, StreamLease};
use dmr_testkit::{Rig, SplitMix64};

const TAG: AllocTag = AllocTag::new("d7");
/// A block of this size has a segment of its own.
const LARGE: usize = 3 << 20;

fn lazy() -> Rig {
    Rig::in_universe(&Universe::builder().policy(Policy::Lazy).build().expect("the simulator"))
}

fn pinned(rig: &Rig) -> PinnedResource {
    PinnedResource::new(Arc::clone(rig.streams()), PinnedKind::Cached)
}

fn host_allocations(rig: &Rig) -> u64 {
    rig.universe().calls().count("cuMemHostAlloc")
}

/// Writes a block of host memory as a whole.
fn host_writes(block: &DeviceBlock, byte: u8) {
    // SAFETY: a live block of pinned memory that no device work uses.
    unsafe { (block.ptr() as *mut u8).write_bytes(byte, block.bytes()) };
}

/// Submits a recorded write of a block.
fn device_writes(rig: &Rig, block: &DeviceBlock, byte: u8, stream: &StreamLease) {
    let uses = rig.streams().uses();
    let window = [BlockUse::new(block.id(), Access::Write)];
    let tokens = uses.prepare(&window, stream.id()).unwrap();
    let pattern = u32::from_le_bytes([byte; 4]);
    rig.ops().fill_pattern(block, 0..block.bytes(), pattern, stream.id()).unwrap();
    uses.finish(tokens).unwrap();
}

#[test]
fn a_hundred_buffers_are_one_host_allocation() {
    let rig = Rig::simulated();
    let home = rig.stream();
    let all = [(); 100].map(|()| rig.streams().allocate_pinned(1000, home.id()).unwrap());
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
        let memory = rig.streams().allocate_pinned(bytes, stream.id()).unwrap();
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
    let (all, reserved) = (host_allocations(&rig), rig.streams().pinned_usage().reserved);
    println!("{at_half} host allocations for 50,000 buffers, {all} for 100,000, {reserved} bytes");
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
    let mut allocate = || rig.streams().allocate_pinned(bytes(), home.id()).unwrap();
    let all: Vec<PinnedMemory> = (0..100_000).map(|_| allocate()).collect();
    let usage = rig.streams().pinned_usage();
    println!("{} host allocations, {usage:?}", host_allocations(&rig));
    assert!(host_allocations(&rig) <= 12, "{}", host_allocations(&rig));
    assert!(usage.reserved < usage.live / 4 * 5 + (32 << 20), "{usage:?}");
    drop(all);
    assert_eq!(rig.streams().reap_pinned(), Ok(usage.live));
    assert_eq!(rig.streams().trim_pinned(0), Ok(usage.reserved), "all chunks have merged again");
    drop(home);
    rig.assert_clean();
}

#[test]
fn an_allocation_from_free_memory_and_a_drop_make_no_driver_call_but_the_capture_check() {
    let rig = Rig::simulated();
    let home = rig.stream();
    drop(rig.streams().allocate_pinned(4096, home.id()).unwrap());
    rig.universe().reset_calls();
    for _ in 0..100 {
        drop(rig.streams().allocate_pinned(4096, home.id()).unwrap());
    }
    let calls = rig.universe().calls();
    assert_eq!((calls.count("cuStreamIsCapturing"), calls.total()), (100, 100), "{calls:?}");
    drop(home);
    rig.assert_clean();
}

/// Asserts that the device writes a block no more that the host has written.
fn assert_the_host_wrote_last(rig: &Rig, block: &DeviceBlock, byte: u8) {
    host_writes(block, byte);
    rig.device().synchronize().unwrap();
    // SAFETY: a live block, and all work is done.
    let bytes = unsafe { std::slice::from_raw_parts(block.ptr() as *const u8, block.bytes()) };
    assert!(bytes.iter().all(|found| *found == byte));
}

/// The contract: stream order does not suffice for memory that the host writes.
#[test]
fn memory_is_allocated_again_only_when_its_recorded_uses_are_done() {
    for home_uses_it in [false, true] {
        let rig = lazy();
        let [home, away] = [rig.stream(), rig.stream()];
        let (resource, user) = (pinned(&rig), if home_uses_it { &home } else { &away });
        let first = resource.allocate(LARGE, home.id(), TAG).unwrap();
        let id = first.id();
        device_writes(&rig, &first, 1, user);
        assert_eq!(resource.deallocate(first).unwrap(), BlockState::Retired);
        assert!(resource.is_retired(id));
        let second = resource.allocate(LARGE, home.id(), TAG).unwrap();
        assert_the_host_wrote_last(&rig, &second, 2);
        resource.reap_pending().unwrap();
        assert!(!resource.is_retired(id));
        resource.deallocate(second).unwrap();
        resource.reap_pending().unwrap();
        let before = host_allocations(&rig);
        let third = resource.allocate(LARGE, home.id(), TAG).unwrap();
        assert_eq!(host_allocations(&rig), before, "it serves again");
        resource.deallocate(third).unwrap();
        drop((home, away, resource));
        rig.assert_clean();
    }
}

/// U8: the free comes after work on the home stream that was not recorded.
#[test]
fn memory_is_allocated_again_only_when_unrecorded_work_of_its_home_stream_is_done() {
    let rig = lazy();
    let home = rig.stream();
    let resource = pinned(&rig);
    let first = resource.allocate(LARGE, home.id(), TAG).unwrap();
    rig.ops().fill_pattern(&first, 0..LARGE, 1, home.id()).unwrap();
    assert_eq!(resource.deallocate(first).unwrap(), BlockState::Retired);
    let second = resource.allocate(LARGE, home.id(), TAG).unwrap();
    assert_the_host_wrote_last(&rig, &second, 2);
    resource.deallocate(second).unwrap();
    drop((home, resource));
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

/// The check that the tests above rely on.
#[test]
fn the_race_detector_finds_pinned_memory_that_is_freed_too_early() {
    let rig = lazy();
    let home = rig.stream();
    let resource = pinned(&rig);
    let block = resource.allocate(1000, home.id(), TAG).unwrap();
    device_writes(&rig, &block, 1, &home);
    let observer = rig.device().memory_observer().unwrap();
    observer.region_freed(block.ptr(), block.generation());
    let kinds: Vec<_> = rig.universe().reports().iter().map(|report| report.kind).collect();
    assert_eq!(kinds, [ReportKind::FreeBeforeUse]);
}

#[test]
fn memory_with_an_open_window_is_free_when_the_window_has_closed_and_its_work_is_done() {
    let rig = lazy();
    let [home, away] = [rig.stream(), rig.stream()];
    let (resource, uses) = (pinned(&rig), rig.streams().uses());
    let block = resource.allocate(LARGE, home.id(), TAG).unwrap();
    let (at, id) = (block.ptr(), block.id());
    let tokens = uses.prepare(&[BlockUse::new(id, Access::Write)], away.id()).unwrap();
    rig.ops().fill_pattern(&block, 0..LARGE, 1, away.id()).unwrap();
    assert_eq!(resource.deallocate(block).unwrap(), BlockState::Retired);
    rig.device().synchronize().unwrap();
    assert_eq!((resource.reap_pending(), resource.is_retired(id)), (Ok(0), true));
    assert_eq!(resource.usage().retired, LARGE as u64);
    uses.finish(tokens).unwrap();
    assert_eq!((resource.reap_pending(), resource.is_retired(id)), (Ok(LARGE as u64), false));
    let again = resource.allocate(LARGE, home.id(), TAG).unwrap();
    assert_eq!(again.ptr(), at);
    resource.deallocate(again).unwrap();
    drop((home, away, resource));
    rig.assert_clean();
}

#[test]
fn the_first_use_on_another_stream_waits_for_nothing() {
    let rig = lazy();
    let [home, away] = [rig.stream(), rig.stream()];
    let memory = rig.streams().allocate_pinned(4096, home.id()).unwrap();
    let busy = rig.streams().allocate_pinned(4096, home.id()).unwrap();
    device_writes(&rig, busy.block(), 1, &home);
    rig.universe().reset_calls();
    device_writes(&rig, memory.block(), 2, &away);
    assert_eq!(rig.universe().calls().count("cuStreamWaitEvent"), 0);
    drop((memory, busy, home, away));
    rig.assert_clean();
}

/// A ring of staging buffers waits for one copy at a time.
#[test]
fn the_host_waits_for_the_uses_of_its_memory_and_not_for_later_work_of_the_stream() {
    let rig = lazy();
    let home = rig.stream();
    let [first, second] = [(); 2].map(|()| rig.streams().allocate_pinned(4096, home.id()).unwrap());
    // A second stream, so that uses have events.
    let away = rig.stream();
    device_writes(&rig, first.block(), 1, &home);
    device_writes(&rig, second.block(), 2, &home);
    rig.universe().reset_calls();
    assert_eq!(first.synchronize(ByteRange::WHOLE), Ok(true));
    let calls = rig.universe().calls();
    assert_eq!((calls.count("cuEventSynchronize"), calls.count("cuEventRecord")), (1, 0));
    // SAFETY: its use is done.
    assert_eq!(unsafe { *first.start().as_ptr() }, 1);
    // SAFETY: as the test is about: the device has not written it yet, and does so in a later call only.
    assert_eq!(unsafe { second.start().as_ptr().read_volatile() }, 0);
    drop((first, second, home, away));
    rig.assert_clean();
}

#[test]
fn the_host_waits_for_uses_of_its_bytes_and_for_no_window_on_others() {
    let rig = lazy();
    let [home, away] = [rig.stream(), rig.stream()];
    let (memory, uses) =
        (rig.streams().allocate_pinned(4096, home.id()).unwrap(), rig.streams().uses());
    let id = memory.block().id();
    let [left, right] = [0, 2048].map(|at| ByteRange::new(memory.block().ptr() + at, 2048));
    let window = [BlockUse::of_bytes(id, Access::Write, left)];
    let tokens = uses.prepare(&window, away.id()).unwrap();
    rig.ops().fill_pattern(memory.block(), 0..2048, 1, away.id()).unwrap();
    assert_eq!(memory.synchronize(left), Ok(false), "its window is open");
    assert_eq!(memory.synchronize(ByteRange::WHOLE), Ok(false), "the window is on a part");
    assert_eq!(memory.synchronize(right), Ok(true));
    uses.finish(tokens).unwrap();
    rig.universe().reset_calls();
    assert_eq!(memory.synchronize(right), Ok(true));
    assert_eq!(rig.universe().calls().count("cuEventSynchronize"), 0);
    for bytes in [left, ByteRange::WHOLE] {
        assert_eq!(memory.synchronize(bytes), Ok(true));
        assert_eq!(rig.universe().calls().count("cuEventSynchronize"), 1, "{bytes:?}");
    }
    drop((memory, home, away));
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
fn threads_never_share_a_byte() {
    let rig = Rig::simulated();
    let streams: Vec<StreamLease> = (0..4).map(|_| rig.stream()).collect();
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let (rig, streams) = (&rig, &streams);
            scope.spawn(move || {
                let mut random = SplitMix64::new(thread as u64);
                let resource = pinned(rig);
                let mut live: VecDeque<(DeviceBlock, u8)> = VecDeque::new();
                for count in 0..2000_usize {
                    let stream = &streams[(thread + count) % 4];
                    let bytes = 1 + (random.next_u64() % 5000) as usize;
                    let block = resource.allocate(bytes, stream.id(), TAG).unwrap();
                    let byte = random.next_u64() as u8;
                    host_writes(&block, byte);
                    live.push_back((block, byte));
                    if live.len() > 20 {
                        let (block, byte) = live.pop_front().unwrap();
                        // SAFETY: a live block, which no device work has used.
                        let bytes = unsafe {
                            std::slice::from_raw_parts(block.ptr() as *const u8, block.bytes())
                        };
                        assert!(bytes.iter().all(|found| *found == byte), "thread {thread}");
                        if count % 8 == 0 {
                            device_writes(rig, &block, byte, stream);
                        }
                        resource.deallocate(block).unwrap();
                    }
                    if count % 500 == 0 {
                        resource.trim_to(0).unwrap();
                    }
                }
                for (block, _) in live {
                    resource.deallocate(block).unwrap();
                }
            });
        }
    });
    rig.streams().reap_pinned().unwrap();
    let usage = rig.streams().pinned_usage();
    assert_eq!((usage.outstanding(), usage.total_allocated), (0, usage.total_freed));
    drop(streams);
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
            let memory = rig.streams().allocate_pinned(100_000 * (1 + nth % 13), home).unwrap();
            device_writes(&rig, memory.block(), 1, &streams[nth / 2 % 2]);
            memory
        })
        .collect();
    let segments = host_allocations(&rig);
    assert!(segments > 4, "{segments}");
    drop((buffers, streams, rig));
    assert_eq!(universe.calls().count("cuMemFreeHost"), 0, "nothing is done");
    dmr_streams::reap_orphaned_pinned().unwrap();
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
