//! D2: while one thread is in a driver call, all that does not need its outcome goes on.

use std::sync::Arc;

use crate::support::{TAG, resource};
use dmr_core::{DeviceMemoryResource, ResourceError, StreamId};
use dmr_streams::Tracked;
use dmr_testkit::Rig;

#[test]
fn while_one_thread_unmaps_others_allocate_deallocate_and_use_pages() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let allocate = || resource.allocate(64, StreamId::DEFAULT, TAG).unwrap();
    let first = allocate();
    let second = allocate();
    resource.deallocate(first).unwrap();
    let hold = rig.universe().hold_nth("cuMemUnmap", 1);
    std::thread::scope(|scope| {
        let reaping = scope.spawn(|| resource.reap_pending().unwrap());
        hold.wait_until_held();
        resource.deallocate(second).unwrap();
        resource.deallocate(allocate()).unwrap();
        assert_eq!((resource.usage().retired, resource.try_reap()), (192, Ok(0)));
        let pages = resource.virtual_memory().unwrap();
        let range = pages.reserve(pages.granularity()).unwrap();
        let memory = pages.create(pages.granularity(), TAG).unwrap();
        pages.map(&memory, range.base()).unwrap();
        pages.unmap(&memory, range.base()).unwrap();
        pages.destroy(memory).unwrap();
        pages.release(range).unwrap();
        // A reap that waits also waits for what the other has in hand.
        let waiting = scope.spawn(|| {
            let freed = resource.reap_pending().unwrap();
            (freed, resource.usage().outstanding())
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiting.is_finished());
        hold.release();
        assert_eq!((reaping.join().unwrap(), waiting.join().unwrap()), (64, (128, 0)));
    });
    drop(resource);
    rig.assert_clean();
}

#[test]
fn tracking_uses_of_blocks_leaves_pages_as_they_are() {
    let rig = Rig::simulated();
    let tracked = Tracked::new(resource(&rig), Arc::clone(rig.streams())).unwrap();
    let pages = tracked.virtual_memory().expect("those of the resource inside");
    let memory = pages.create(pages.granularity(), TAG).unwrap();
    assert_eq!(tracked.upstream().usage().reserved, pages.granularity());
    pages.destroy(memory).unwrap();
    drop(tracked);
    rig.assert_clean();
}

#[test]
fn deallocated_blocks_make_room_for_pages() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    // More than half of what is free: two of them never fit.
    let (free, _) = rig.device().memory_info().unwrap();
    let bytes = free / 3 * 2 / pages.granularity() * pages.granularity();
    let block = resource.allocate(bytes as usize, StreamId::DEFAULT, TAG).unwrap();
    let refused = pages.create(bytes, TAG).unwrap_err();
    assert!(matches!(refused, ResourceError::OutOfMemory { .. }), "{refused}");
    resource.deallocate(block).unwrap();
    let memory = pages.create(bytes, TAG).unwrap();
    assert_eq!(resource.usage().reserved, bytes);
    pages.destroy(memory).unwrap();
    drop(resource);
    rig.assert_clean();
}
