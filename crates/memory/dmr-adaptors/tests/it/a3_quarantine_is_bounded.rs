//! A3: the quarantine has the configured size, and is emptied when memory is short.

#![cfg(feature = "debug-guard")]

use crate::a3::{BOTH, Backend, TAG, guarded, layer};
use dmr_core::{BlockState, DeviceMemoryResource};
use dmr_testkit::Rig;

/// Bytes of a block of 1000 with its red zones.
const WHOLE: usize = 1024 + 512;

#[test]
fn the_oldest_leave_first_when_blocks_or_bytes_are_too_many() {
    for (bytes, blocks) in [(1 << 30, 3), (3 * WHOLE, 1000), (4 * WHOLE - 1, 1000)] {
        for checks in BOTH {
            let rig = Rig::new();
            let home = rig.stream();
            let config = layer(&rig).with_checks(checks).with_quarantine(bytes, blocks);
            let guard = guarded(Backend::Async.make(&rig), config);
            let mut deallocated = Vec::new();
            for _ in 0..10 {
                let block = guard.allocate(1000, home.id(), TAG).unwrap();
                deallocated.push(block.id());
                assert_eq!(guard.deallocate(block).unwrap(), BlockState::Quarantined);
                // What has left the quarantine is freed once its check is done.
                rig.device().synchronize().unwrap();
                guard.upstream().try_reap().unwrap();
                let kept: Vec<_> = deallocated.iter().map(|id| guard.is_retired(*id)).collect();
                let gone = deallocated.len().saturating_sub(3);
                assert!(kept.iter().enumerate().all(|(i, kept)| *kept == (i >= gone)), "{kept:?}");
                assert_eq!(guard.usage().retired, 1000 * deallocated.len().min(3) as u64);
            }
            assert_eq!(guard.try_reap(), Ok(0), "within the bound nothing leaves");
            assert_eq!(guard.reap_pending(), Ok(3000));
            drop((guard, home));
            rig.assert_clean();
        }
    }
}

#[test]
fn without_a_quarantine_a_block_is_freed_once_its_check_is_done() {
    for checks in BOTH {
        let rig = Rig::new();
        let home = rig.stream();
        let config = layer(&rig).with_checks(checks).with_quarantine(0, 0);
        let guard = guarded(Backend::Async.make(&rig), config);
        let block = guard.allocate(1000, home.id(), TAG).unwrap();
        assert_eq!(guard.deallocate(block).unwrap(), BlockState::Retired);
        rig.device().synchronize().unwrap();
        assert_eq!(guard.try_reap(), Ok(1000));
        assert_eq!(guard.bytes_outstanding(), 0);
        drop((guard, home));
        rig.assert_clean();
    }
}

#[test]
fn what_the_inner_resource_frees_by_itself_is_seen() {
    let rig = Rig::new();
    let home = rig.stream();
    let guard = guarded(Backend::Direct.make(&rig), layer(&rig).with_quarantine(0, 0));
    let block = guard.allocate(1000, home.id(), TAG).unwrap();
    let id = block.id();
    assert_eq!(guard.deallocate(block).unwrap(), BlockState::Retired);
    assert_eq!((guard.usage().retired, guard.is_retired(id)), (1000, true));
    // The direct backend frees what is retired before it allocates.
    let next = guard.allocate(1, home.id(), TAG).unwrap();
    assert_eq!((guard.usage().retired, guard.is_retired(id)), (0, false));
    assert_eq!(guard.bytes_outstanding(), 1);
    guard.deallocate(next).unwrap();
    drop((guard, home));
    rig.assert_clean();
}

#[test]
fn memory_that_is_needed_is_not_kept_in_quarantine() {
    for backend in [Backend::Direct, Backend::TrackedDirect, Backend::Async] {
        let rig = Rig::small();
        let home = rig.stream();
        let guard =
            guarded(backend.make(&rig), layer(&rig).with_quarantine(usize::MAX, usize::MAX));
        let bytes = rig.device().total_memory() as usize / 3;
        for _ in 0..5 {
            let block = guard.allocate(bytes, home.id(), TAG).unwrap();
            assert_eq!(guard.deallocate(block).unwrap(), BlockState::Quarantined);
        }
        guard.reap_pending().unwrap();
        assert_eq!(guard.bytes_outstanding(), 0);
        drop((guard, home));
        rig.assert_clean();
    }
}

#[test]
fn dropping_it_or_taking_it_apart_gives_the_quarantine_to_the_inner_resource() {
    let rig = Rig::new();
    let home = rig.stream();
    for takes_apart in [false, true] {
        let guard = Backend::Async.guarded(&rig, Default::default());
        let block = guard.allocate(1000, home.id(), TAG).unwrap();
        guard.deallocate(block).unwrap();
        if takes_apart {
            let inner = guard.into_upstream();
            assert_eq!(inner.bytes_outstanding(), 0);
        }
    }
    drop(home);
    rig.assert_clean();
}
