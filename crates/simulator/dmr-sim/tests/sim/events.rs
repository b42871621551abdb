//! Events: the record that a wait binds, and the progress that a query makes.

use crate::support::gpu::{self, Gpu, code, fill, kinds, machine, malloc, record, wait};
use cudarc::driver::sys;
use dmr_sim::{Policy, ReportKind, Universe};

const INVALID_HANDLE: i32 = sys::CUresult::CUDA_ERROR_INVALID_HANDLE as i32;

#[test]
fn a_wait_covers_what_came_before_the_record() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let event = gpu::event();
    let before = malloc(64).unwrap();
    let after = malloc(64).unwrap();
    fill(before, 1, 64, a).unwrap();
    record(event, a).unwrap();
    fill(after, 1, 64, a).unwrap();
    wait(b, event).unwrap();
    fill(before, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), []);
    fill(after, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn recording_again_moves_later_waits_only() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let early = gpu::stream();
    let late = gpu::stream();
    let event = gpu::event();
    let first = malloc(64).unwrap();
    let second = malloc(64).unwrap();
    fill(first, 1, 64, a).unwrap();
    record(event, a).unwrap();
    wait(early, event).unwrap();
    fill(second, 1, 64, a).unwrap();
    record(event, a).unwrap();
    wait(late, event).unwrap();
    fill(first, 2, 64, early).unwrap();
    fill(second, 2, 64, late).unwrap();
    assert_eq!(kinds(&universe), []);
    fill(second, 3, 64, early).unwrap();
    assert_eq!(kinds(&universe)[0], ReportKind::WriteAfterWrite);
}

#[test]
fn recording_on_another_stream_moves_the_event_there() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let c = gpu::stream();
    let event = gpu::event();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    record(event, a).unwrap();
    record(event, b).unwrap();
    wait(c, event).unwrap();
    fill(block, 2, 64, c).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn a_never_recorded_event_is_complete_and_orders_nothing() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let event = gpu::event();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    assert!(gpu::query_event(event));
    gpu::sync_event(event).unwrap();
    wait(b, event).unwrap();
    fill(block, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn synchronising_an_event_covers_the_record_and_no_more() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let event = gpu::event();
    let before = malloc(64).unwrap();
    let after = malloc(64).unwrap();
    fill(before, 1, 64, a).unwrap();
    record(event, a).unwrap();
    fill(after, 1, 64, a).unwrap();
    gpu::sync_event(event).unwrap();
    fill(before, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), []);
    fill(after, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn a_loop_on_a_query_ends_under_every_policy() {
    for policy in [Policy::Eager, Policy::Lazy, Policy::Random] {
        let universe = Universe::builder().policy(policy).build().unwrap();
        let _gpu = Gpu::new(&universe);
        let a = gpu::stream();
        let b = gpu::stream();
        let event = gpu::event();
        let block = malloc(64).unwrap();
        for byte in 0..50 {
            fill(block, byte, 64, a).unwrap();
        }
        record(event, a).unwrap();
        let asked = (1..=1000).find(|_| gpu::query_event(event));
        assert!(asked.is_some(), "{policy:?} makes no progress");
        fill(block, 1, 64, b).unwrap();
        assert!(kinds(&universe).is_empty(), "a query that returns done orders");
        let asked = (1..=1000).find(|_| gpu::query(b));
        assert!(asked.is_some(), "{policy:?} makes no progress on a stream");
    }
}

#[test]
fn a_lazy_device_has_not_run_work_without_a_wait() {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let _gpu = Gpu::new(&universe);
    let a = gpu::stream();
    let event = gpu::event();
    let block = malloc(64).unwrap();
    for byte in 0..50 {
        fill(block, byte, 64, a).unwrap();
    }
    record(event, a).unwrap();
    assert!(!gpu::query_event(event));
    gpu::sync_event(event).unwrap();
    assert!(gpu::query_event(event));
}

#[test]
fn a_query_that_returns_not_ready_orders_nothing() {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let _gpu = Gpu::new(&universe);
    let a = gpu::stream();
    let b = gpu::stream();
    let event = gpu::event();
    let block = malloc(64).unwrap();
    for byte in 0..50 {
        fill(block, byte, 64, a).unwrap();
    }
    record(event, a).unwrap();
    assert!(!gpu::query_event(event));
    fill(block, 1, 64, b).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn an_event_is_recorded_in_its_own_context_and_waited_for_anywhere() {
    let universe = Universe::new().unwrap();
    let first = Gpu::of(&universe, 0);
    let event = gpu::event();
    let stream = gpu::stream();
    let second = Gpu::of(&universe, 1);
    let other_event = gpu::event();
    let other_stream = gpu::stream();
    assert_eq!(code(record(event, other_stream)), Some(INVALID_HANDLE));
    assert_eq!(code(record(other_event, stream)), Some(INVALID_HANDLE));
    first.bind();
    record(event, stream).unwrap();
    wait(other_stream, event).unwrap();
    second.bind();
    gpu::sync(other_stream).unwrap();
}

#[test]
fn an_event_may_be_destroyed_while_it_is_waited_for() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let event = gpu::event();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    record(event, a).unwrap();
    wait(b, event).unwrap();
    gpu::destroy_event(event).unwrap();
    fill(block, 2, 64, b).unwrap();
    gpu::sync(b).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [2; 64]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_destroyed_event_is_refused() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    let event = gpu::event();
    gpu::destroy_event(event).unwrap();
    assert!(record(event, a).is_err());
    assert!(wait(a, event).is_err());
    assert!(gpu::destroy_event(event).is_err());
}
