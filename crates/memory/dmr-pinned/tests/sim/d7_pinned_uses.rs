//! D7: pinned memory is allocated again only when its uses are done; the host waits for the uses of
//! its bytes.

#![allow(unsafe_code, reason = "the host reads and writes pinned memory; flags are the driver's")]

use std::collections::VecDeque;

use crate::pinned_support::{
    LARGE, TAG, assert_the_host_wrote_last, device_writes, host_allocations, host_writes, lazy,
    pinned,
};
use dmr_core::{
    Access, BlockState, BlockUse, ByteRange, DeviceBlock, DeviceMemoryResource, DeviceOps,
};
use dmr_pinned::{PinnedMemory, PinnedPool};
use dmr_sim::ReportKind;
use dmr_streams::StreamLease;
use dmr_testkit::{Rig, SplitMix64};

#[test]
fn an_allocation_from_free_memory_and_a_drop_make_no_driver_call_but_the_look_for_a_capture() {
    let rig = Rig::simulated();
    let home = rig.stream();
    let _lent = home.stream().clone();
    drop(PinnedMemory::new(rig.streams(), 4096, home.id()).unwrap());
    rig.universe().reset_calls();
    for _ in 0..100 {
        drop(PinnedMemory::new(rig.streams(), 4096, home.id()).unwrap());
    }
    let calls = rig.universe().calls();
    assert_eq!((calls.count("cuStreamIsCapturing"), calls.total()), (100, 100), "{calls:?}");
    drop(home);
    rig.assert_clean();
}

/// The contract: stream order does not suffice for memory that the host writes.
#[test]
fn memory_is_allocated_again_only_when_its_recorded_uses_are_done() {
    for home_uses_it in [false, true] {
        let rig = lazy();
        let [home, away] = [rig.stream(), rig.stream()];
        let resource = pinned(&rig);
        let user = if home_uses_it { &home } else { &away };
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
    let resource = pinned(&rig);
    let uses = rig.streams().uses();
    let block = resource.allocate(LARGE, home.id(), TAG).unwrap();
    let at = block.ptr();
    let id = block.id();
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
    let memory = PinnedMemory::new(rig.streams(), 4096, home.id()).unwrap();
    let busy = PinnedMemory::new(rig.streams(), 4096, home.id()).unwrap();
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
    let [first, second] =
        [(); 2].map(|()| PinnedMemory::new(rig.streams(), 4096, home.id()).unwrap());
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
    // SAFETY: as the test is about: the device has not written it yet, and does so in a later call
    // only.
    assert_eq!(unsafe { second.start().as_ptr().read_volatile() }, 0);
    drop((first, second, home, away));
    rig.assert_clean();
}

#[test]
fn the_host_waits_for_uses_of_its_bytes_and_for_no_window_on_others() {
    let rig = lazy();
    let [home, away] = [rig.stream(), rig.stream()];
    let memory = PinnedMemory::new(rig.streams(), 4096, home.id()).unwrap();
    let uses = rig.streams().uses();
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
fn threads_never_share_a_byte() {
    let rig = Rig::simulated();
    let streams: Vec<StreamLease> = (0..4).map(|_| rig.stream()).collect();
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let rig = &rig;
            let streams = &streams;
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
    PinnedPool::of(rig.streams()).reap_pending().unwrap();
    let usage = PinnedPool::of(rig.streams()).usage();
    assert_eq!((usage.outstanding(), usage.total_allocated), (0, usage.total_freed));
    drop(streams);
    rig.assert_clean();
}
