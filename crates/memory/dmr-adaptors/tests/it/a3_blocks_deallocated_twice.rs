//! A3: a block is not deallocated twice, and a block of another resource is reported as foreign.

#![cfg(feature = "debug-guard")]

use crate::a3::{BACKENDS, BOTH, Backend, Memory, TAG, TRACKING, guarded, layer};
use dmr_core::{
    Access, BlockUse, DeviceMemoryResource, ResourceError, ResourceResult, StreamId, Usage,
    UseTrackingExt,
};
use dmr_testkit::Rig;

/// Deallocates the block once more, which is refused and changes nothing.
fn is_refused(guard: &impl DeviceMemoryResource, memory: &Memory) -> ResourceError {
    let before: Usage = guard.usage();
    let refused = guard.deallocate(memory.again()).unwrap_err();
    assert_eq!((refused.block.tag(), refused.block.generation()), (TAG, memory.generation()));
    assert_eq!(guard.usage(), before);
    refused.error
}

#[test]
fn a_double_free_is_use_after_free_in_quarantine_and_after_it() {
    for (backend, checks) in BACKENDS.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::new();
        let guard = backend.guarded(&rig, checks);
        let home = rig.stream();
        let block = guard.allocate(1001, home.id(), TAG).unwrap();
        let memory = Memory::of(&block);
        guard.deallocate(block).unwrap();
        let expected = ResourceError::use_after_free(memory.generation());
        assert_eq!(is_refused(&guard, &memory), expected, "in quarantine");
        guard.reap_pending().unwrap();
        assert_eq!(is_refused(&guard, &memory), expected, "freed");
        // Another block lives there now, and stays.
        let next = guard.allocate(1001, home.id(), TAG).unwrap();
        assert_eq!(is_refused(&guard, &memory), expected, "its memory is another's");
        guard.deallocate(next).unwrap();
        guard.reap_pending().unwrap();
        assert_eq!(guard.violations(), []);
        drop((guard, home));
        rig.assert_clean();
    }
}

#[test]
fn a_block_that_is_no_longer_remembered_and_a_stranger_are_foreign() {
    let rig = Rig::new();
    let home = rig.stream();
    let [guard, stranger] =
        [0, 1].map(|_| guarded(Backend::Async.make(&rig), layer(&rig).with_quarantine(0, 0)));
    let block = guard.allocate(1, home.id(), TAG).unwrap();
    let memory = Memory::of(&block);
    assert!(matches!(is_refused(&stranger, &memory), ResourceError::ForeignBlock { .. }));
    guard.deallocate(block).unwrap();
    for _ in 0..4097 {
        guard.deallocate(guard.allocate(1, home.id(), TAG).unwrap()).unwrap();
    }
    assert!(matches!(is_refused(&guard, &memory), ResourceError::ForeignBlock { .. }));
    // Directly from upstream: it is deallocated there.
    let unguarded = guard.upstream().allocate(1, home.id(), TAG).unwrap();
    let refused = guard.deallocate(unguarded).unwrap_err();
    assert!(matches!(refused.error, ResourceError::ForeignBlock { .. }));
    guard.upstream().deallocate(refused.block).unwrap();
    drop((guard, stranger, home));
    rig.assert_clean();
}

#[test]
fn a_use_of_a_block_in_quarantine_is_use_after_free() {
    for backend in TRACKING {
        let rig = Rig::new();
        let guard = guarded(backend.make(&rig), layer(&rig));
        let [home, other] = [rig.stream(), rig.stream()];
        let live = guard.allocate(64, home.id(), TAG).unwrap();
        let block = guard.allocate(64, home.id(), TAG).unwrap();
        let memory = Memory::of(&block);
        let stale = block.id();
        guard.deallocate(block).unwrap();
        assert!(guard.is_retired(stale));
        let is_stale = |result: ResourceResult<()>| {
            assert_eq!(result, Err(ResourceError::use_after_free(stale.generation())));
        };
        for stream in [home.id(), other.id(), StreamId::DEFAULT] {
            let both = [live.id(), stale].map(|id| BlockUse::new(id, Access::Write));
            is_stale(guard.prepare_block_use(stale, stream, Access::Read).map(drop));
            is_stale(guard.prepare_uses(&both, stream).map(drop));
            is_stale(guard.record_block_use(&memory.again(), stream));
        }
        // No window of the live one was left open.
        let token = guard.prepare_block_use(live.id(), other.id(), Access::Write).unwrap();
        guard.finish_uses(token).unwrap();
        guard.deallocate(live).unwrap();
        assert_eq!(guard.usage().retired, 128);
        guard.reap_pending().unwrap();
        assert_eq!(guard.bytes_outstanding(), 0);
        drop((guard, home, other));
        rig.assert_clean();
    }
}
