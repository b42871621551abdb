//! Faults on demand: calls that fail, that do nothing, that stop half-way; and the count of calls.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::support::gpu::{
    self, Gpu, code, fill, free, kinds, machine, malloc, malloc_async, record, sync, wait,
};
use dmr_sim::{Policy, ReportKind, Universe};

const OUT_OF_MEMORY: i32 = 2;
const LAUNCH_FAILED: i32 = 719;

#[test]
fn the_nth_call_of_a_kind_fails_and_no_other() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    universe.fail_nth("cuMemAlloc_v2", 2, OUT_OF_MEMORY);
    let first = malloc(64).unwrap();
    fill(first, 1, 64, a).unwrap();
    assert_eq!(code(malloc(64)), Some(OUT_OF_MEMORY));
    let third = malloc(64).unwrap();
    for block in [first, third] {
        free(block).unwrap();
    }
    assert!(universe.finish().is_clean(), "the failed call allocated nothing");
}

#[test]
fn counting_starts_when_the_fault_is_planted() {
    let (universe, _gpu) = machine();
    for _ in 0..5 {
        malloc(64).unwrap();
    }
    universe.fail_nth("cuMemAlloc_v2", 1, OUT_OF_MEMORY);
    assert_eq!(code(malloc(64)), Some(OUT_OF_MEMORY));
    malloc(64).unwrap();
}

#[test]
fn a_failed_call_does_nothing() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let event = gpu::event();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    sync(a).unwrap();
    universe.fail_nth("cuMemsetD8Async", 1, LAUNCH_FAILED);
    assert_eq!(code(fill(block, 2, 64, a)), Some(LAUNCH_FAILED));
    universe.fail_nth("cuEventRecord", 1, LAUNCH_FAILED);
    assert_eq!(code(record(event, a)), Some(LAUNCH_FAILED));
    assert!(gpu::query_event(event), "it was never recorded");
    fill(block, 3, 64, b).unwrap();
    sync(b).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [3; 64]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn the_nth_call_of_any_kind_fails() {
    let calls = |universe: &Universe| -> Result<(), cudarc::driver::DriverError> {
        let a = gpu::stream();
        let _ = universe;
        let block = malloc(64)?;
        fill(block, 1, 64, a)?;
        sync(a)?;
        free(block)
    };
    let (universe, _gpu) = machine();
    universe.reset_calls();
    calls(&universe).unwrap();
    let total = universe.calls().total();
    assert_eq!(total, 5);
    for n in 2..=total {
        let (universe, _gpu) = machine();
        universe.fail_call_number(n, LAUNCH_FAILED);
        assert_eq!(code(calls(&universe)), Some(LAUNCH_FAILED), "call {n}");
    }
    let (universe, _gpu) = machine();
    universe.fail_call_number(total + 1, LAUNCH_FAILED);
    calls(&universe).unwrap();
}

#[test]
fn a_swallowed_record_leaves_the_wait_without_an_edge() {
    let program = |swallowed: bool| {
        let (universe, _gpu) = machine();
        let a = gpu::stream();
        let b = gpu::stream();
        let event = gpu::event();
        let block = malloc(64).unwrap();
        if swallowed {
            universe.swallow_nth("cuEventRecord", 1);
        }
        fill(block, 1, 64, a).unwrap();
        record(event, a).unwrap();
        wait(b, event).unwrap();
        fill(block, 2, 64, b).unwrap();
        kinds(&universe)
    };
    assert_eq!(program(false), []);
    assert_eq!(program(true), [ReportKind::WriteAfterWrite]);
}

#[test]
fn a_swallowed_wait_or_synchronisation_orders_nothing() {
    for call in ["cuStreamWaitEvent", "cuStreamSynchronize", "cuEventSynchronize"] {
        let (universe, _gpu) = machine();
        let a = gpu::stream();
        let b = gpu::stream();
        let event = gpu::event();
        let block = malloc(64).unwrap();
        universe.swallow_nth(call, 1);
        fill(block, 1, 64, a).unwrap();
        record(event, a).unwrap();
        match call {
            "cuStreamWaitEvent" => wait(b, event).unwrap(),
            "cuStreamSynchronize" => sync(a).unwrap(),
            _ => gpu::sync_event(event).unwrap(),
        }
        fill(block, 2, 64, b).unwrap();
        assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite], "{call}");
    }
}

#[test]
fn a_swallowed_fill_writes_nothing_and_a_swallowed_free_leaks() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    universe.swallow_nth("cuMemsetD8Async", 1);
    fill(block, 2, 64, a).unwrap();
    sync(a).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [1; 64]);
    universe.swallow_nth("cuMemFree_v2", 1);
    free(block).unwrap();
    let verdict = universe.finish();
    assert_eq!(verdict.reports.len(), 1);
    assert_eq!(verdict.reports[0].kind, ReportKind::Leak);
}

#[test]
fn faults_can_be_taken_back() {
    let (universe, _gpu) = machine();
    universe.fail_nth("cuMemAlloc_v2", 1, OUT_OF_MEMORY);
    universe.fail_call_number(1, OUT_OF_MEMORY);
    universe.swallow_nth("cuMemAlloc_v2", 1);
    universe.clear_faults();
    assert_ne!(malloc(64).unwrap(), 0);
}

#[test]
fn faults_stay_in_their_universe() {
    let (faulty, _first) = machine();
    faulty.fail_nth("cuMemAlloc_v2", 1, OUT_OF_MEMORY);
    let (_sound, second) = machine();
    second.bind();
    malloc(64).unwrap();
}

#[test]
fn a_held_call_stops_its_thread_and_no_other() {
    let (universe, gpu) = machine();
    let hold = universe.hold_nth("cuMemAlloc_v2", 1);
    let (told, heard) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            gpu.bind();
            let block = malloc(64).unwrap();
            told.send(block).unwrap();
        });
        hold.wait_until_held();
        // Other calls, also of the same kind, continue.
        let a = gpu::stream();
        let block = malloc(64).unwrap();
        fill(block, 1, 64, a).unwrap();
        sync(a).unwrap();
        assert!(heard.recv_timeout(Duration::from_millis(50)).is_err());
        hold.release();
        let held = heard.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_ne!(held, block);
    });
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_call_that_is_held_afterwards_has_acted() {
    let (universe, gpu) = machine();
    let block = malloc(64).unwrap();
    let event = gpu::event();
    let first = gpu::stream();
    let second = gpu::stream();
    // Handles are pointers, which are not `Send`.
    let handles = (first as usize, event as usize);
    thread::scope(|scope| {
        // In the scope, so that a test that fails releases the other thread.
        let hold = universe.hold_after_nth("cuEventRecord", 1);
        let held = scope.spawn(move || {
            gpu.bind();
            let first = handles.0 as _;
            let event = handles.1 as _;
            fill(block, 1, 64, first).unwrap();
            record(event, first)
        });
        hold.wait_until_held();
        // The record has been made and can be waited for: the fills do not race.
        wait(second, event).unwrap();
        fill(block, 2, 64, second).unwrap();
        sync(second).unwrap();
        assert!(!held.is_finished());
        hold.release();
        assert!(held.join().unwrap().is_ok());
    });
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_dropped_hold_lets_go() {
    let (universe, gpu) = machine();
    let hold = universe.hold_nth("cuMemAlloc_v2", 1);
    thread::scope(|scope| {
        let held = scope.spawn(|| {
            gpu.bind();
            malloc(64).unwrap()
        });
        hold.wait_until_held();
        drop(hold);
        held.join().unwrap();
    });
}

#[test]
fn calls_are_counted_by_name() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    universe.reset_calls();
    let blocks = [(); 3].map(|()| malloc_async(64, a).unwrap());
    for block in blocks {
        gpu::free_async(block, a).unwrap();
    }
    assert!(malloc(usize::MAX).is_err());
    let calls = universe.calls();
    assert_eq!(calls.count("cuMemAllocAsync"), 3);
    assert_eq!(calls.count("cuMemFreeAsync"), 3);
    assert_eq!(calls.count("cuMemAlloc_v2"), 1, "failed calls count");
    assert_eq!(calls.count("cuMemFree_v2"), 0);
    assert_eq!(calls.total(), 7);
    assert_eq!(calls.iter().map(|(_, count)| count).sum::<u64>(), 7);
    universe.reset_calls();
    assert_eq!(universe.calls().total(), 0);
}

#[test]
fn threads_know_what_others_learned_unless_the_universe_says_otherwise() {
    use dmr_sim::HostOrder;
    let program = |order: HostOrder, handed_over: bool| {
        let universe = Universe::builder().policy(Policy::Lazy).host_order(order).build().unwrap();
        let gpu = Gpu::new(&universe);
        let a = gpu::stream();
        let block = malloc(64).unwrap();
        fill(block, 1, 64, a).unwrap();
        sync(a).unwrap();
        let token = universe.publish();
        thread::scope(|scope| {
            scope.spawn(|| {
                gpu.bind();
                if handed_over {
                    universe.observe(&token);
                }
                fill(block, 2, 64, gpu::stream()).unwrap();
            });
        });
        kinds(&universe)
    };
    assert_eq!(program(HostOrder::Linearised, false), []);
    let unknown = program(HostOrder::PerThread, false);
    assert_eq!(unknown, [ReportKind::WriteAfterWrite]);
    assert_eq!(program(HostOrder::PerThread, true), []);
}

#[test]
fn a_hook_runs_at_the_start_of_each_call_and_can_fail_it() {
    let (universe, _gpu) = machine();
    let (entered, seen) = mpsc::channel();
    let hook = move |call| {
        let _ = entered.send(call);
        (call == "cuMemAlloc_v2").then_some(OUT_OF_MEMORY)
    };
    assert!(universe.on_entry(hook));
    assert!(!universe.on_entry(|_| None), "a universe has one hook");
    assert_eq!(code(malloc(64)), Some(OUT_OF_MEMORY));
    let a = gpu::stream();
    sync(a).unwrap();
    let seen: Vec<_> = seen.try_iter().collect();
    assert_eq!(seen[0], "cuMemAlloc_v2");
    assert_eq!(seen.last(), Some(&"cuStreamSynchronize"));
    assert!(universe.finish().is_clean(), "the failed call allocated nothing");
}
