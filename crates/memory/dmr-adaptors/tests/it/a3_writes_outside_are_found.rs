//! A3: a write before or behind a block is found, with the offset of its first byte.

#![cfg(feature = "debug-guard")]

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::a3::{
    BACKENDS, BOTH, Backend, Guard, Hooked, Memory, Moment, TAG, TRACKING, guarded, layer,
};
use dmr_adaptors::guard::{DebugGuardLayer, GuardChecks};
use dmr_core::{
    Access, BlockUse, Corruption, CorruptionKind, DeallocateError, DeviceBlock,
    DeviceMemoryResource, ResourceError, StreamId, UseTrackingExt,
};
use dmr_testkit::Rig;

/// Deallocates the block; returns the finding, which each mode reports in its own way, once.
fn found(guard: &Guard, checks: GuardChecks, block: DeviceBlock) -> Corruption {
    let id = block.id();
    let error = match checks {
        GuardChecks::Deferred => {
            guard.deallocate(block).unwrap();
            guard.reap_pending().unwrap_err()
        }
        _ => {
            let refused = guard.deallocate(block).unwrap_err();
            assert_eq!(refused.block.id(), id);
            assert_eq!(guard.usage().live, refused.block.bytes() as u64);
            // The second time it is taken.
            guard.deallocate(refused.block).unwrap();
            refused.error
        }
    };
    assert_eq!(guard.usage().live, 0);
    guard.reap_pending().expect("it is reported once");
    assert_eq!(guard.bytes_outstanding(), 0);
    assert_eq!(guard.check_all().unwrap(), []);
    match error {
        ResourceError::Corrupted(found) => {
            assert_eq!(guard.take_violations(), [(*found).clone()]);
            *found
        }
        other => panic!("{other}"),
    }
}

fn expect(found: &Corruption, block: &Memory, bytes: usize, home: StreamId, offset: i64) {
    let kind = if offset < 0 { CorruptionKind::Underrun } else { CorruptionKind::Overrun };
    let expected = Corruption {
        kind,
        generation: block.generation(),
        tag: TAG,
        bytes,
        alloc_stream: home,
        offset,
        allocated_at: None,
    };
    assert_eq!(*found, expected);
}

#[test]
fn one_byte_outside_is_found_wherever_it_is_in_the_red_zone() {
    for (backend, checks) in BACKENDS.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::new();
        let guard = backend.guarded(&rig, checks);
        let home = rig.stream();
        for bytes in [1, 4, 255, 256, 257, 1001, 70_000] {
            for offset in [-1, -2, -5, -256, 0, 1, 2, 7, 255] {
                let offset = if offset < 0 { offset } else { bytes as i64 + offset };
                let block = guard.allocate(bytes, home.id(), TAG).unwrap();
                let memory = Memory::of(&block);
                memory.write(&rig, offset, &home);
                let found = found(&guard, checks, block);
                expect(&found, &memory, bytes, home.id(), offset);
            }
        }
        drop((guard, home));
        rig.assert_clean();
    }
}

#[test]
fn the_first_bad_byte_is_reported_and_each_side_once() {
    for checks in BOTH {
        let rig = Rig::new();
        let guard = Backend::Async.guarded(&rig, checks);
        let home = rig.stream();
        let block = guard.allocate(1000, home.id(), TAG).unwrap();
        let memory = Memory::of(&block);
        for offset in [-3, -9, -1, 1003, 1009, 1001] {
            memory.write(&rig, offset, &home);
        }
        let mut left = Some(block);
        let mut found = Vec::new();
        for _ in 0..4 {
            let result = match left.take() {
                Some(block) => guard.deallocate(block).map(drop).map_err(|refused| {
                    left = Some(refused.block);
                    refused.error
                }),
                None => guard.reap_pending().map(drop),
            };
            if let Err(ResourceError::Corrupted(corruption)) = result {
                found.push(corruption.offset);
            }
        }
        assert_eq!(found, [-9, 1001], "{checks:?}");
        assert_eq!(guard.violations().len(), 2);
        drop((guard, home));
        rig.assert_clean();
    }
}

#[test]
fn what_another_stream_writes_is_found_if_its_use_was_recorded() {
    for (backend, checks) in TRACKING.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::new();
        let guard = backend.guarded(&rig, checks);
        let [home, other] = [rig.stream(), rig.stream()];
        for (bytes, offset) in [(1001, 1001), (1001, -1)] {
            for recorded_late in [false, true] {
                let block = guard.allocate(bytes, home.id(), TAG).unwrap();
                let memory = Memory::of(&block);
                let uses = [BlockUse::new(block.id(), Access::Write)];
                let tokens = guard.prepare_uses(&uses, other.id()).unwrap();
                rig.delay(&other);
                if recorded_late {
                    guard.cancel_uses(tokens).unwrap();
                    memory.write(&rig, offset, &other);
                    guard.record_block_use(&block, other.id()).unwrap();
                } else {
                    memory.write(&rig, offset, &other);
                    guard.finish_uses(tokens).unwrap();
                }
                let found = found(&guard, checks, block);
                expect(&found, &memory, bytes, home.id(), offset);
            }
        }
        drop((guard, home, other));
        rig.assert_clean();
    }
}

#[test]
fn check_all_finds_it_while_the_block_is_in_use() {
    for (backend, checks) in BACKENDS.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::new();
        let guard = backend.guarded(&rig, checks);
        let home = rig.stream();
        let clean = guard.allocate(77, home.id(), TAG).unwrap();
        let block = guard.allocate(1001, home.id(), TAG).unwrap();
        assert_eq!(guard.check_all().unwrap(), []);
        let memory = Memory::of(&block);
        memory.write(&rig, 1001, &home);
        let found = guard.check_all().unwrap();
        assert_eq!(found.len(), 1, "{backend:?}");
        expect(&found[0], &memory, 1001, home.id(), 1001);
        assert_eq!(guard.check_all().unwrap(), []);
        // It was reported, so `deallocate` does not report it again.
        guard.deallocate(block).unwrap();
        guard.deallocate(clean).unwrap();
        guard.reap_pending().unwrap();
        assert_eq!(guard.violations(), found);
        drop((guard, home));
        rig.assert_clean();
    }
}

#[test]
fn check_all_sees_recorded_uses_of_other_streams() {
    for backend in TRACKING {
        let rig = Rig::new();
        let guard = backend.guarded(&rig, GuardChecks::Immediate);
        let [home, other] = [rig.stream(), rig.stream()];
        let block = guard.allocate(1001, home.id(), TAG).unwrap();
        let memory = Memory::of(&block);
        let token = guard.prepare_block_use(block.id(), other.id(), Access::Write).unwrap();
        rig.delay(&other);
        memory.write(&rig, -1, &other);
        guard.finish_uses(token).unwrap();
        let found = guard.check_all().unwrap();
        assert_eq!(found.len(), 1, "{backend:?}");
        expect(&found[0], &memory, 1001, home.id(), -1);
        guard.deallocate(block).unwrap();
        drop((guard, home, other));
        rig.assert_clean();
    }
}

#[test]
fn each_thread_gets_the_finding_of_its_own_block_whatever_thread_reads_the_results() {
    const THREADS: usize = 4;
    let rig = Rig::new();
    // Lets other threads run between reading results back and returning them.
    let ops = Hooked::new(&rig, |moment| {
        if moment == Moment::AfterCollect {
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    });
    let guard = guarded(Backend::Async.make(&rig), DebugGuardLayer::new(ops));
    let leases: [_; THREADS] = std::array::from_fn(|_| rig.stream());
    std::thread::scope(|scope| {
        for (nth, home) in leases.iter().enumerate() {
            let rig = &rig;
            let guard = &guard;
            scope.spawn(move || {
                for round in 0..300 {
                    let block = guard.allocate(100, home.id(), TAG).unwrap();
                    let memory = Memory::of(&block);
                    let is_bad = (round + nth) % 3 == 0;
                    if is_bad {
                        memory.write(rig, 100, home);
                    }
                    match guard.deallocate(block).map_err(|refused| *refused) {
                        Ok(_) => assert!(!is_bad, "round {round} of thread {nth}"),
                        Err(DeallocateError { error, block, .. }) => {
                            assert!(is_bad, "round {round} of thread {nth}: {error}");
                            let ResourceError::Corrupted(found) = error else { panic!("{error}") };
                            expect(&found, &memory, 100, home.id(), 100);
                            guard.deallocate(block).unwrap();
                        }
                    }
                }
            });
        }
    });
    guard.reap_pending().expect("all were reported");
    assert_eq!(guard.violations().len(), 300 * THREADS / 3);
    drop((guard, leases));
    rig.assert_clean();
}

#[test]
fn a_collection_between_the_two_checks_of_a_block_loses_no_finding() {
    let rig = Rig::new();
    let home = rig.stream();
    let other = Arc::new(Mutex::new(None::<Guard>));
    let checks = AtomicUsize::new(0);
    let collects = Arc::clone(&other);
    // As another thread: a guard of the same layer reads all verdicts back before the second check.
    let ops = Hooked::new(&rig, move |moment| {
        if moment == Moment::BeforeCheck && checks.fetch_add(1, SeqCst) == 1 {
            collects.lock().unwrap().take().unwrap().check_all()?;
        }
        Ok(())
    });
    let layer = DebugGuardLayer::new(ops).with_checks(GuardChecks::Deferred);
    *other.lock().unwrap() = Some(guarded(Backend::Async.make(&rig), layer.clone()));
    let guard = guarded(Backend::Async.make(&rig), layer);
    let block = guard.allocate(100, home.id(), TAG).unwrap();
    let memory = Memory::of(&block);
    memory.write(&rig, 100, &home);
    guard.deallocate(block).unwrap();
    let Err(ResourceError::Corrupted(found)) = guard.reap_pending() else { panic!("not found") };
    expect(&found, &memory, 100, home.id(), 100);
    assert!(other.lock().unwrap().is_none(), "it has collected");
    drop((guard, home));
    rig.assert_clean();
}

#[test]
fn a_wider_red_zone_sees_further() {
    let rig = Rig::new();
    let home = rig.stream();
    let guard = guarded(Backend::Async.make(&rig), layer(&rig).with_red_zone(1000));
    let sees = |offset: i64| {
        let block = guard.allocate(100, home.id(), TAG).unwrap();
        Memory::of(&block).write(&rig, offset, &home);
        let refused = guard.deallocate(block).unwrap_err();
        let DeallocateError { error, block, .. } = *refused;
        guard.deallocate(block).unwrap();
        matches!(error, ResourceError::Corrupted(found) if found.offset == offset)
    };
    assert!(sees(-1024) && sees(100 + 1023), "1000 is rounded up to 1024");
    drop((guard, home));
    rig.assert_clean();
}

/// Found by its symbol, so also where there is no debug information.
#[inline(never)]
fn allocated_right_here(guard: &Guard, home: StreamId) -> DeviceBlock {
    guard.allocate(64, home, TAG).unwrap()
}

#[test]
fn the_backtrace_says_where_it_was_allocated_if_it_was_asked_for() {
    let rig = Rig::new();
    let home = rig.stream();
    let guard = guarded(Backend::Async.make(&rig), layer(&rig).with_backtraces(true));
    let block = allocated_right_here(&guard, home.id());
    let id = block.id();
    Memory::of(&block).write(&rig, 64, &home);
    let refused = guard.deallocate(block).unwrap_err();
    let here = "allocated_right_here";
    assert!(refused.error.to_string().contains(here), "{refused}");
    guard.deallocate(refused.block).unwrap();
    guard.reap_pending().unwrap();
    assert!(guard.allocated_at(id).is_some_and(|backtrace| backtrace.contains(here)));
    drop((guard, home));
    rig.assert_clean();
}
