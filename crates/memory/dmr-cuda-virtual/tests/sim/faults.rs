//! Whatever driver call fails: nothing leaks, the accounting stays exact, nothing is lost.

use std::time::Duration;

use crate::support::{TAG, resource, take_back};
use dmr_core::{
    DeviceMemoryResource, PhysicalMemory, ResourceError, ResourceResult, StreamId, VirtualMemory,
};
use dmr_testkit::{Rig, for_each_driver_call};

const OUT_OF_MEMORY: i32 = 2;
const UNKNOWN: i32 = 999;

/// The call again, if it failed: one call fails in each run.
fn insist<T>(mut call: impl FnMut() -> ResourceResult<T>) -> T {
    call().or_else(|_| call()).expect("only one driver call fails")
}

#[test]
fn no_driver_call_that_fails_loses_a_block_memory_or_accounting() {
    for code in [OUT_OF_MEMORY, UNKNOWN] {
        let prepare = |rig: &Rig| (resource(rig), rig.stream());
        let failed = for_each_driver_call(code, prepare, |rig, (resource, stream)| {
            let exact = |live: u64| {
                let usage = resource.usage();
                assert_eq!(usage.live, live);
                assert!(usage.reserved >= usage.live + usage.retired);
                assert_eq!(usage.total_allocated, usage.total_freed + usage.outstanding());
            };
            let allocate = |bytes| insist(|| resource.allocate(bytes, stream.id(), TAG));
            let free = |mut block| {
                while let Err(refused) = resource.deallocate(block) {
                    block = refused.block;
                }
            };
            let a = allocate(100);
            let b = allocate(200);
            exact(300);
            free(a);
            exact(200);
            let c = allocate(400);
            exact(600);
            free(b);
            insist(|| resource.try_reap());
            exact(400);
            free(c);
            insist(|| resource.reap_pending());
            exact(0);
            // What could not be undone at first is gone by now.
            assert_eq!((resource.usage().total_freed, resource.usage().reserved), (700, 0));
            drop((resource, stream));
            let verdict = rig.universe().finish();
            assert!(verdict.is_clean(), "{verdict}");
        });
        assert!(failed >= 30, "{failed} calls were failed");
    }
}

fn insist_destroy(pages: &dyn VirtualMemory, memory: PhysicalMemory) {
    if let Err(refused) = pages.destroy(memory) {
        pages.destroy(refused.memory).expect("only one driver call fails");
    }
}

#[test]
fn no_driver_call_that_fails_loses_pages_or_addresses() {
    for code in [OUT_OF_MEMORY, UNKNOWN] {
        let failed = for_each_driver_call(code, resource, |rig, resource| {
            let pages = resource.virtual_memory().unwrap();
            let page = pages.granularity();
            let range = insist(|| pages.reserve(4 * page));
            let memory = insist(|| pages.create(2 * page, TAG));
            assert_eq!(resource.usage().reserved, 2 * page);
            for at in [range.base(), range.base() + 2 * page] {
                insist(|| pages.map(&memory, at));
            }
            for at in [range.base(), range.base() + 2 * page] {
                insist(|| pages.unmap(&memory, at));
            }
            insist_destroy(pages, memory);
            if let Err(refused) = pages.release(range) {
                pages.release(refused.range).expect("only one driver call fails");
            }
            assert_eq!(resource.usage().reserved, 0);
            drop(resource);
            let verdict = rig.universe().finish();
            assert!(verdict.is_clean(), "{verdict}");
        });
        assert!(failed >= 8, "{failed} calls were failed");
    }
}

#[test]
fn access_that_cannot_be_given_leaves_nothing_mapped() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    let range = pages.reserve(page).unwrap();
    let memory = pages.create(page, TAG).unwrap();
    rig.universe().fail_nth("cuMemSetAccess", 1, UNKNOWN);
    let error = pages.map(&memory, range.base()).unwrap_err();
    assert!(matches!(error, ResourceError::Driver { call: "cuMemSetAccess", .. }), "{error}");
    pages.destroy(memory).unwrap();
    pages.release(range).unwrap();
    drop(resource);
    rig.assert_clean();
}

#[test]
fn a_mapping_that_can_be_neither_used_nor_undone_is_undone_later() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    let range = pages.reserve(page).unwrap();
    let memory = pages.create(page, TAG).unwrap();
    let fail_both = || {
        rig.universe().fail_nth("cuMemSetAccess", 1, UNKNOWN);
        rig.universe().fail_nth("cuMemUnmap", 1, UNKNOWN);
    };
    fail_both();
    assert!(pages.map(&memory, range.base()).is_err());
    // Mapped again: what is in the way goes first.
    pages.map(&memory, range.base()).unwrap();
    pages.unmap(&memory, range.base()).unwrap();
    fail_both();
    assert!(pages.map(&memory, range.base()).is_err());
    // The caller has no mapping to unmap.
    assert!(pages.unmap(&memory, range.base()).is_err());
    // While the mapping cannot be undone, the memory is not destroyed.
    rig.universe().fail_nth("cuMemUnmap", 1, UNKNOWN);
    let refused = pages.destroy(memory).unwrap_err();
    assert!(matches!(refused.error, ResourceError::StillMapped { mappings: 1, .. }), "{refused}");
    assert_eq!(resource.usage().reserved, page);
    pages.destroy(refused.memory).unwrap();
    pages.release(range).unwrap();
    drop(resource);
    rig.assert_clean();
}

#[test]
fn a_call_waits_for_a_thread_that_unmaps_a_stale_mapping_in_its_way_and_others_go_on() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    let range = pages.reserve(2 * page).unwrap();
    let base = range.base();
    let elsewhere = range.base() + page;
    let [memory, other] = [(); 2].map(|()| pages.create(page, TAG).unwrap());
    let make_stale = |memory: &PhysicalMemory| {
        rig.universe().fail_nth("cuMemSetAccess", 1, UNKNOWN);
        rig.universe().fail_nth("cuMemUnmap", 1, UNKNOWN);
        assert!(pages.map(memory, base).is_err());
        rig.universe().hold_nth("cuMemUnmap", 1)
    };
    // Unmapped to map other memory there, while its memory is destroyed.
    let hold = make_stale(&memory);
    std::thread::scope(|scope| {
        let mapping = scope.spawn(|| pages.map(&other, base));
        hold.wait_until_held();
        let destroying = scope.spawn(|| pages.destroy(memory));
        let unrelated = pages.create(page, TAG).unwrap();
        pages.map(&unrelated, elsewhere).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let waits = !destroying.is_finished();
        hold.release();
        destroying.join().unwrap().unwrap();
        mapping.join().unwrap().unwrap();
        assert!(waits);
        pages.unmap(&unrelated, elsewhere).unwrap();
        pages.destroy(unrelated).unwrap();
    });
    pages.unmap(&other, base).unwrap();
    // Unmapped to destroy its memory, while other memory is mapped there.
    let memory = pages.create(page, TAG).unwrap();
    let hold = make_stale(&memory);
    std::thread::scope(|scope| {
        let destroying = scope.spawn(|| pages.destroy(memory));
        hold.wait_until_held();
        let mapping = scope.spawn(|| pages.map(&other, base));
        std::thread::sleep(Duration::from_millis(20));
        let waits = !mapping.is_finished();
        hold.release();
        mapping.join().unwrap().unwrap();
        destroying.join().unwrap().unwrap();
        assert!(waits);
    });
    pages.unmap(&other, base).unwrap();
    pages.destroy(other).unwrap();
    pages.release(range).unwrap();
    drop(resource);
    rig.assert_clean();
}

#[test]
fn a_stale_mapping_that_cannot_be_unmapped_fails_the_map_in_its_way_with_that_error() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    let range = pages.reserve(2 * page).unwrap();
    let memory = pages.create(page, TAG).unwrap();
    rig.universe().fail_nth("cuMemSetAccess", 1, UNKNOWN);
    rig.universe().fail_nth("cuMemUnmap", 1, UNKNOWN);
    assert!(pages.map(&memory, range.base()).is_err());
    rig.universe().fail_nth("cuMemUnmap", 1, UNKNOWN);
    // Beside it, nothing is in the way.
    pages.map(&memory, range.base() + page).unwrap();
    let error = pages.map(&memory, range.base()).unwrap_err();
    assert!(matches!(error, ResourceError::Driver { call: "cuMemUnmap", .. }), "{error}");
    take_back(pages, memory, &[range.base() + page], range);
    drop(resource);
    rig.assert_clean();
}

#[test]
fn an_allocation_that_can_be_neither_finished_nor_undone_is_kept_and_undone_later() {
    let failing: [&[&str]; 4] = [
        &["cuMemAddressReserve", "cuMemRelease"],
        &["cuMemMap", "cuMemRelease"],
        &["cuMemMap", "cuMemAddressFree"],
        &["cuMemSetAccess", "cuMemUnmap"],
    ];
    for calls in failing {
        let rig = Rig::simulated();
        let resource = resource(&rig);
        for call in calls {
            rig.universe().fail_nth(call, 1, UNKNOWN);
        }
        resource.allocate(100, StreamId::DEFAULT, TAG).unwrap_err();
        let usage = resource.usage();
        assert_eq!((usage.outstanding(), usage.total_allocated), (0, 0), "{calls:?}");
        assert_eq!(resource.reap_pending(), Ok(0));
        assert_eq!(resource.usage().reserved, 0, "{calls:?}");
        drop(resource);
        rig.assert_clean();
    }
}

#[test]
fn a_block_that_cannot_be_unmapped_keeps_its_own_and_lets_the_others_go() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let blocks =
        [100, 200, 300].map(|bytes| resource.allocate(bytes, StreamId::DEFAULT, TAG).unwrap());
    let ids = [0, 1, 2].map(|index: usize| blocks[index].id());
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    rig.universe().fail_nth("cuMemUnmap", 2, UNKNOWN);
    let error = resource.try_reap().unwrap_err();
    assert!(matches!(error, ResourceError::Driver { call: "cuMemUnmap", .. }), "{error}");
    let page = resource.granularity();
    let usage = resource.usage();
    assert_eq!((usage.retired, usage.reserved, usage.total_freed), (200, page, 400));
    assert_eq!(ids.map(|id| resource.is_retired(id)), [false, true, false]);
    assert_eq!(resource.reap_pending().unwrap(), 200);
    drop(resource);
    rig.assert_clean();
}
