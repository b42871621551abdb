//! A universe that is dropped with findings that were not read panics with them.

use crate::support;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use crate::support::gpu::{free, machine, malloc};
use dmr_sim::Universe;

/// Returns the message of the panic in which `code` ends.
fn panic_of(code: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(code)).expect_err("the drop panics");
    *panic.downcast::<String>().expect("a panic with a text")
}

/// Makes a finding.
fn free_twice() {
    let ptr = malloc(64).unwrap();
    free(ptr).unwrap();
    assert!(free(ptr).is_err());
}

#[test]
fn the_drop_of_the_last_handle_panics_with_findings_that_were_not_read() {
    let (universe, _gpu) = machine();
    free_twice();
    let other = universe.clone();
    drop(universe);
    let message = panic_of(|| drop(other));
    assert!(message.contains("1 finding"), "{message}");
    assert!(message.contains("double free: "), "{message}");
}

#[test]
fn findings_that_were_returned_do_not_panic() {
    let read: [fn(&Universe) -> usize; 2] =
        [|universe| universe.reports().len(), |universe| universe.finish().reports.len()];
    for read in read {
        let (universe, _gpu) = machine();
        free_twice();
        assert_eq!(read(&universe), 1);
        drop(universe);
    }
}

#[test]
fn the_drop_shows_what_was_found_after_the_last_verdict_and_only_that() {
    let (universe, _gpu) = machine();
    free_twice();
    assert_eq!(universe.finish().reports.len(), 1);
    assert!(free(12).is_err());
    let message = panic_of(|| drop(universe));
    assert!(message.contains("free of memory that was never allocated"), "{message}");
    assert!(!message.contains("double free"), "{message}");
}

#[test]
fn a_leak_is_a_finding_of_the_verdict_and_not_of_the_drop() {
    let (universe, _gpu) = machine();
    malloc(64).unwrap();
    drop(universe);
}

#[test]
fn a_universe_whose_drop_panics_has_ended() {
    let universe = Universe::new().unwrap();
    let ordinal = universe.ordinal(0);
    let device = ordinal as i32;
    let context = support::gpu::Gpu::on(ordinal);
    free_twice();
    panic_of(|| drop(universe));
    drop(context);
    assert!(cudarc::driver::result::device::get(device).is_err());
}

/// The test below runs this one in a process of its own, and reads what it writes.
#[test]
#[should_panic = "the values"]
fn ends_with_another_panic() {
    let (_universe, _gpu) = machine();
    free_twice();
    assert_eq!([0.0], [100.0], "the values");
}

#[test]
fn findings_are_written_to_stderr_while_a_panic_unwinds() {
    let test = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sim_unread_findings::ends_with_another_panic", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&test.stderr).into_owned();
    assert!(test.status.success(), "a second panic would abort: {text}");
    assert!(text.contains("the values"), "{text}");
    assert!(text.contains("dmr-sim: a universe was dropped"), "{text}");
    assert!(text.contains("double free: "), "{text}");
}
