//! Whatever driver call fails: no memory is lost, no finding is wrong, and none is lost.

#![cfg(feature = "debug-guard")]

use crate::a3::{BACKENDS, BOTH, Backend, Guard, Memory, TAG, guarded, layer};
use dmr_core::{
    Access, BlockUse, DeallocateError, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError,
    ResourceResult, StreamId, UseTrackingExt,
};
use dmr_streams::StreamLease;
use dmr_testkit::{Rig, for_each_driver_call};

const CODES: [i32; 2] = [2, 999];

/// The call again, if it failed: one call fails in each run.
fn insist<T>(mut call: impl FnMut() -> ResourceResult<T>) -> T {
    call().or_else(|_| call()).expect("only one driver call fails")
}

/// Deallocates a block, even if a call fails or a write is found; returns the number of findings.
fn deallocate(guard: &Guard, block: DeviceBlock) -> usize {
    let mut block = block;
    let mut found = 0;
    for _ in 0..3 {
        let live = guard.usage().live;
        match guard.deallocate(block) {
            Ok(_) => return found,
            Err(refused) => {
                assert_eq!(guard.usage().live, live);
                let DeallocateError { error, block: refused, .. } = *refused;
                found += usize::from(matches!(error, ResourceError::Corrupted(_)));
                block = refused;
            }
        }
    }
    panic!("{block} is refused again and again");
}

/// Reaps until nothing fails and nothing is reported any more; counts what is.
fn reap(guard: &Guard) -> usize {
    let mut found = 0;
    for _ in 0..8 {
        match guard.reap_pending() {
            Ok(_) => return found,
            Err(error) => found += usize::from(matches!(error, ResourceError::Corrupted(_))),
        }
    }
    panic!("reaping fails again and again");
}

fn use_on(rig: &Rig, guard: &Guard, block: &DeviceBlock, stream: StreamId) {
    let uses = [BlockUse::new(block.id(), Access::Write)];
    let tokens = insist(|| guard.prepare_uses(&uses, stream));
    insist(|| rig.ops().fill_pattern(block, 0..block.bytes(), 0, stream));
    // The use stands, whether or not its event could be recorded.
    let _ = guard.finish_uses(tokens);
}

fn made(
    rig: &Rig,
    backend: Backend,
    checks: dmr_adaptors::guard::GuardChecks,
) -> (Guard, [StreamLease; 2]) {
    let config = layer(rig).with_checks(checks).with_quarantine(1 << 20, 2);
    (guarded(backend.make(rig), config), [rig.stream(), rig.stream()])
}

#[test]
fn a_clean_program_stays_clean_and_exact() {
    for (backend, checks) in BACKENDS.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        for code in CODES {
            let prepare = |rig: &Rig| made(rig, backend, checks);
            let failed = for_each_driver_call(code, prepare, |rig, (guard, streams)| {
                let [home, other] = [0, 1].map(|nth: usize| streams[nth].id());
                for round in 0..4 {
                    let block = insist(|| guard.allocate(100 + round, home, TAG));
                    if backend != Backend::Direct {
                        use_on(rig, &guard, &block, other);
                    }
                    if round == 2 {
                        assert_eq!(insist(|| guard.check_all()), []);
                    }
                    assert_eq!(deallocate(&guard, block), 0);
                }
                assert_eq!(reap(&guard), 0);
                assert_eq!((guard.violations(), guard.unchecked_blocks()), (Vec::new(), 0));
                let usage = guard.usage();
                assert_eq!((usage.outstanding(), usage.total_allocated), (0, usage.total_freed));
                assert_eq!(guard.upstream().bytes_outstanding(), 0);
                drop((guard, streams));
                assert_eq!(rig.verdict(), Ok(()));
            });
            assert!(failed > 60, "{failed} calls were failed");
        }
    }
}

#[test]
fn what_is_found_is_reported_once_whatever_fails_meanwhile() {
    for (backend, checks) in BACKENDS.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let prepare = |rig: &Rig| {
            let (guard, streams) = made(rig, backend, checks);
            let home = streams[0].id();
            let [overrun, late] = [0, 1].map(|_| guard.allocate(100, home, TAG).unwrap());
            Memory::of(&overrun).write(rig, 100, home);
            (guard, streams, overrun, late)
        };
        let failed =
            for_each_driver_call(CODES[1], prepare, |rig, (guard, streams, overrun, late)| {
                let mut reported = deallocate(&guard, overrun);
                let memory = Memory::of(&late);
                reported += deallocate(&guard, late);
                insist(|| memory.try_write(rig, 5, streams[0].id()));
                reported += reap(&guard);
                let found: Vec<_> = guard.violations().iter().map(|found| found.offset).collect();
                assert_eq!((reported, found.len()), (2, 2), "{backend:?} {checks:?} {found:?}");
                assert!(found.contains(&100) && found.contains(&5));
                assert_eq!(guard.bytes_outstanding(), 0);
                drop((guard, streams));
            });
        assert!(failed > 20, "{failed} calls were failed");
    }
}
