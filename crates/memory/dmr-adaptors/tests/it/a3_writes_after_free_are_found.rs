//! A3: a write into a deallocated block is found while the block is in quarantine.

#![cfg(feature = "debug-guard")]

use crate::a3::{BACKENDS, BOTH, Backend, Memory, TAG, guarded, layer};
use dmr_adaptors::guard::GuardChecks;
use dmr_core::{Corruption, CorruptionKind, DeviceMemoryResource, DeviceOps, ResourceError};
use dmr_testkit::Rig;

const BYTES: usize = 1001;

fn is_it(found: &Corruption, memory: &Memory, kind: CorruptionKind, offset: i64) -> bool {
    (found.kind, found.offset, found.generation) == (kind, offset, memory.generation())
        && (found.bytes, found.tag) == (BYTES, TAG)
}

#[test]
fn a_write_after_free_is_found_when_the_block_leaves_the_quarantine() {
    let cases = [
        (0, CorruptionKind::WriteAfterFree),
        (500, CorruptionKind::WriteAfterFree),
        (1000, CorruptionKind::WriteAfterFree),
        (1001, CorruptionKind::Overrun),
        (-1, CorruptionKind::Underrun),
    ];
    for (backend, checks) in BACKENDS.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::new();
        let guard = backend.guarded(&rig, checks);
        let home = rig.stream();
        for (offset, kind) in cases {
            let block = guard.allocate(BYTES, home.id(), TAG).unwrap();
            let memory = Memory::of(&block);
            rig.ops().fill_pattern(&block, 0..BYTES, 7, home.id()).unwrap();
            guard.deallocate(block).unwrap();
            memory.write(&rig, offset, &home);
            // Later in the block: the first bad byte is the other one.
            memory.write(&rig, offset.max(900) + 2, &home);
            match guard.reap_pending().unwrap_err() {
                ResourceError::Corrupted(found) => {
                    assert!(is_it(&found, &memory, kind, offset), "{found}");
                }
                other => panic!("{other}"),
            }
            guard.reap_pending().expect("it is reported once");
            assert_eq!(guard.take_violations().len(), 1);
            assert_eq!(guard.bytes_outstanding(), 0);
        }
        drop((guard, home));
        rig.assert_clean();
    }
}

#[test]
fn a_write_after_free_by_another_stream_is_found() {
    for (backend, checks) in BACKENDS.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::new();
        let guard = backend.guarded(&rig, checks);
        let [home, other] = [rig.stream(), rig.stream()];
        let block = guard.allocate(BYTES, home.id(), TAG).unwrap();
        let memory = Memory::of(&block);
        guard.deallocate(block).unwrap();
        rig.ops().synchronize(home.id()).unwrap();
        memory.write(&rig, 12, &other);
        rig.ops().synchronize(other.id()).unwrap();
        let found = guard.check_all().unwrap();
        assert_eq!(found.len(), 1);
        assert!(is_it(&found[0], &memory, CorruptionKind::WriteAfterFree, 12), "{}", found[0]);
        // Seen once; leaving the quarantine is no news.
        guard.reap_pending().unwrap();
        assert_eq!(guard.take_violations(), found);
        drop((guard, home, other));
        rig.assert_clean();
    }
}

#[test]
fn a_block_that_others_push_out_of_the_quarantine_is_checked() {
    for (backend, checks) in BACKENDS.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::new();
        let home = rig.stream();
        let config = layer(&rig).with_checks(checks).with_quarantine(1 << 20, 3);
        let guard = guarded(backend.make(&rig), config);
        let allocate = || guard.allocate(BYTES, home.id(), TAG).unwrap();
        let block = allocate();
        let memory = Memory::of(&block);
        guard.deallocate(block).unwrap();
        memory.write(&rig, 0, &home);
        for _ in 0..3 {
            guard.deallocate(allocate()).unwrap();
        }
        // It has left the quarantine. Upstream keeps it until its check is done, or until a reap.
        rig.device().synchronize().unwrap();
        guard.upstream().try_reap().unwrap();
        assert!(!guard.is_retired(memory.again().id()));
        assert_eq!(guard.usage().live, 0);
        // Its check comes before its free, and the next read of results returns it.
        let found = guard.check_all().unwrap();
        assert_eq!(found.len(), 1, "{backend:?} {checks:?}");
        assert!(is_it(&found[0], &memory, CorruptionKind::WriteAfterFree, 0), "{}", found[0]);
        drop((guard, home));
        rig.assert_clean();
    }
}

#[test]
fn try_reap_returns_findings_that_were_read_back_and_not_reported_one_at_a_time() {
    let rig = Rig::new();
    let home = rig.stream();
    let config = layer(&rig).with_checks(GuardChecks::Deferred);
    let [guard, other] = [0, 1].map(|_| guarded(Backend::Async.make(&rig), config.clone()));
    let mut written = Vec::new();
    for _ in 0..2 {
        let block = guard.allocate(BYTES, home.id(), TAG).unwrap();
        let memory = Memory::of(&block);
        memory.write(&rig, 1001, &home);
        guard.deallocate(block).unwrap();
        written.push(memory.generation());
    }
    assert_eq!(guard.try_reap(), Ok(0), "it does not wait, and so has no result");
    // Another guard of the same layer reads all results back, and keeps none.
    assert_eq!(other.check_all().unwrap(), []);
    for generation in written {
        match guard.try_reap().unwrap_err() {
            ResourceError::Corrupted(found) => {
                assert_eq!((found.generation, found.kind), (generation, CorruptionKind::Overrun));
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(guard.try_reap(), Ok(0));
    assert_eq!((guard.violations().len(), other.violations().len()), (2, 0));
    drop((guard, other, config, home));
    rig.assert_clean();
}
