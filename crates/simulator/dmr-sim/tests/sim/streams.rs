//! Streams: the legacy NULL stream, priorities, destruction, and host callbacks.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;
use std::sync::Mutex;
use std::thread;

use crate::support::gpu::{
    self, Gpu, LEGACY, blocking_stream, destroy_stream, fill, kinds, machine, malloc, record, wait,
};
use cudarc::driver::result::{event, stream as streams};
use cudarc::driver::sys::{self, CUstream};
use dmr_sim::{Policy, ReportKind, Universe};

fn lazy() -> (Universe, Gpu) {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let gpu = Gpu::new(&universe);
    (universe, gpu)
}

#[test]
fn one_stream_runs_in_order() {
    for seed in 0..20 {
        let universe = Universe::builder().seed(seed).build().unwrap();
        let _gpu = Gpu::new(&universe);
        let a = gpu::stream();
        let block = malloc(64).unwrap();
        for byte in 0..20 {
            fill(block, byte, 64, a).unwrap();
        }
        gpu::sync(a).unwrap();
        assert_eq!(gpu::read(block, 64).unwrap(), [19; 64]);
        assert_eq!(kinds(&universe), []);
    }
}

#[test]
fn a_blocking_stream_orders_with_the_legacy_stream_both_ways() {
    let (universe, _gpu) = machine();
    let a = blocking_stream();
    let b = blocking_stream();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    fill(block, 2, 64, LEGACY).unwrap();
    fill(block, 3, 64, b).unwrap();
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_non_blocking_stream_does_not_order_with_the_legacy_stream() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let other = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    fill(block, 2, 64, LEGACY).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
    fill(other, 1, 64, LEGACY).unwrap();
    fill(other, 2, 64, a).unwrap();
    assert_eq!(kinds(&universe).len(), 2);
}

#[test]
fn blocking_streams_do_not_order_with_each_other() {
    let (universe, _gpu) = machine();
    let a = blocking_stream();
    let b = blocking_stream();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    fill(block, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn a_record_on_the_legacy_stream_covers_the_blocking_streams() {
    let (universe, _gpu) = machine();
    let blocking = blocking_stream();
    let other = gpu::stream();
    let event = gpu::event();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, blocking).unwrap();
    record(event, LEGACY).unwrap();
    wait(other, event).unwrap();
    fill(block, 2, 64, other).unwrap();
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_wait_of_the_legacy_stream_holds_the_blocking_streams_back() {
    let (universe, _gpu) = machine();
    let blocking = blocking_stream();
    let other = gpu::stream();
    let event = gpu::event();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, other).unwrap();
    record(event, other).unwrap();
    wait(LEGACY, event).unwrap();
    fill(block, 2, 64, blocking).unwrap();
    assert_eq!(kinds(&universe), []);
}

#[test]
fn waiting_for_the_legacy_stream_waits_for_the_blocking_streams() {
    let (universe, _gpu) = lazy();
    let blocking = blocking_stream();
    let other = gpu::stream();
    let block = malloc(64).unwrap();
    for byte in 0..20 {
        fill(block, byte, 64, blocking).unwrap();
    }
    assert!(!gpu::query(LEGACY));
    gpu::sync(LEGACY).unwrap();
    assert!(gpu::query(blocking));
    fill(block, 2, 64, other).unwrap();
    assert_eq!(kinds(&universe), []);
}

#[test]
fn waiting_for_a_blocking_stream_does_not_wait_for_the_legacy_stream() {
    let (universe, _gpu) = lazy();
    let blocking = blocking_stream();
    let other = gpu::stream();
    let block = malloc(64).unwrap();
    for byte in 0..20 {
        fill(block, byte, 64, LEGACY).unwrap();
    }
    assert!(gpu::query(blocking), "it has no work of its own");
    gpu::sync(blocking).unwrap();
    fill(block, 2, 64, other).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn waiting_for_nothing_does_not_join_the_blocking_streams() {
    let (universe, _gpu) = machine();
    let a = blocking_stream();
    let b = blocking_stream();
    let never = gpu::event();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    wait(LEGACY, never).unwrap();
    fill(block, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn the_legacy_stream_has_a_name_of_its_own() {
    let (universe, _gpu) = machine();
    let named = 1 as CUstream;
    let blocking = blocking_stream();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, named).unwrap();
    fill(block, 2, 64, LEGACY).unwrap();
    fill(block, 3, 64, blocking).unwrap();
    fill(block, 4, 64, named).unwrap();
    gpu::sync(named).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [4; 64]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn the_per_thread_stream_is_another_one_on_each_thread() {
    let (universe, gpu) = machine();
    let per_thread = 2 as CUstream;
    let block = malloc(64).unwrap();
    fill(block, 1, 64, per_thread).unwrap();
    fill(block, 2, 64, per_thread).unwrap();
    assert_eq!(kinds(&universe), []);
    thread::scope(|scope| {
        scope.spawn(|| {
            gpu.bind();
            fill(block, 3, 64, 2 as CUstream).unwrap();
        });
    });
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn priorities_are_kept_within_the_devices_range() {
    let (_universe, _gpu) = machine();
    let (least, greatest) = streams::get_priority_range().unwrap();
    assert!(greatest < least, "smaller numbers go first");
    for (asked, expected) in
        [(greatest, greatest), (least, least), (greatest - 100, greatest), (least + 100, least)]
    {
        let kind = streams::StreamKind::NonBlocking;
        let stream = streams::create_with_priority(kind, asked).unwrap();
        let mut priority = 0;
        // SAFETY: the stream is live, the out-parameter a local.
        unsafe { sys::cuStreamGetPriority(stream, &mut priority) }.result().unwrap();
        assert_eq!(priority, expected, "asked for {asked}");
    }
}

#[test]
fn a_stream_may_be_destroyed_with_work_pending() {
    let (universe, _gpu) = lazy();
    let a = gpu::stream();
    let event = gpu::event();
    let block = malloc(64).unwrap();
    for byte in 0..20 {
        fill(block, byte, 64, a).unwrap();
    }
    record(event, a).unwrap();
    destroy_stream(a).unwrap();
    assert!(!gpu::query_event(event), "destroying does not wait");
    gpu::sync_event(event).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [19; 64]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn the_work_of_a_destroyed_stream_can_still_race() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    destroy_stream(a).unwrap();
    fill(block, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
    gpu::sync_context().unwrap();
    fill(block, 3, 64, b).unwrap();
    assert_eq!(kinds(&universe).len(), 1);
}

#[test]
fn a_destroyed_stream_is_refused() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    destroy_stream(a).unwrap();
    assert!(fill(block, 1, 64, a).is_err());
    assert!(gpu::sync(a).is_err());
    assert!(destroy_stream(a).is_err());
    assert_eq!(kinds(&universe), []);
}

static CALLED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Records its number.
unsafe extern "C" fn note(number: *mut c_void) {
    CALLED.lock().unwrap().push(number as usize);
}

fn call_host(stream: CUstream, number: usize) {
    // SAFETY: the function takes its data as a number and lives for ever.
    unsafe { sys::cuLaunchHostFunc(stream, Some(note), number as *mut c_void) }.result().unwrap();
}

#[test]
fn host_callbacks_run_in_stream_order() {
    let (universe, _gpu) = lazy();
    let a = gpu::stream();
    let b = gpu::stream();
    let event = gpu::event();
    let block = malloc(64).unwrap();
    for number in 0..5 {
        call_host(a, number);
        fill(block, 1, 64, a).unwrap();
    }
    record(event, a).unwrap();
    wait(b, event).unwrap();
    call_host(b, 5);
    gpu::sync(b).unwrap();
    assert_eq!(*CALLED.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_destroyed_stream_is_refused_when_later_streams_have_come_and_gone() {
    let (_universe, _gpu) = machine();
    let first = gpu::stream();
    fill(malloc(64).unwrap(), 1, 64, first).unwrap();
    gpu::sync(first).unwrap();
    destroy_stream(first).unwrap();
    for _ in 0..300 {
        let next = gpu::stream();
        assert_ne!(next, first);
        assert_eq!(gpu::code(gpu::sync(first)), Some(400), "invalid handle");
        gpu::sync(next).unwrap();
        destroy_stream(next).unwrap();
    }
}

#[test]
fn a_new_stream_does_not_wait_for_the_work_of_a_destroyed_one() {
    for policy in [Policy::Eager, Policy::Lazy, Policy::Random] {
        let universe = Universe::builder().policy(policy).build().unwrap();
        let _gpu = Gpu::new(&universe);
        let block = malloc(64).unwrap();
        let first = gpu::stream();
        fill(block, 1, 64, first).unwrap();
        destroy_stream(first).unwrap();
        let second = gpu::stream();
        fill(block, 2, 64, second).unwrap();
        assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite], "{policy:?}");
        // After a wait, a third one may take the place of both.
        gpu::sync(second).unwrap();
        gpu::sync_context().unwrap();
        destroy_stream(second).unwrap();
        let third = gpu::stream();
        let fourth = gpu::stream();
        fill(block, 3, 64, third).unwrap();
        fill(block, 4, 64, fourth).unwrap();
        assert_eq!(kinds(&universe).len(), 2, "{policy:?}");
    }
}

#[test]
fn the_time_between_two_events_is_known_after_many_operations() {
    let (_universe, _gpu) = lazy();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let timed = || event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).unwrap();
    let start = timed();
    let end = timed();
    let fill_often = |times| (0..times).for_each(|_| fill(block, 1, 64, a).unwrap());
    fill_often(2_000);
    record(start, a).unwrap();
    fill_often(5_000);
    record(end, a).unwrap();
    gpu::sync(a).unwrap();
    let mut milliseconds = 0.0;
    // SAFETY: the pointer is valid.
    unsafe { sys::cuEventElapsedTime_v2(&raw mut milliseconds, start, end) }.result().unwrap();
    assert!(
        (4.9..5.2).contains(&milliseconds),
        "5,000 memsets of a microsecond: {milliseconds} ms"
    );
}
