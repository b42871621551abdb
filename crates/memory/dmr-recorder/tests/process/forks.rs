//! A forked child records nothing, and may begin a recorder of its own.
#![cfg(unix)]
#![allow(unsafe_code, reason = "forks")]

use dmr_recorder::{RecorderConfig, is_on, label, start, write_recording_to};

use crate::support::{Read, Recording, allocate};

/// Runs `child` in a forked process. Returns whether it returned `true`.
fn in_a_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `child`, and ends.
    match unsafe { libc::fork() } {
        -1 => panic!("fork"),
        // SAFETY: ends the child, without the parent's handlers.
        0 => unsafe { libc::_exit(i32::from(!child())) },
        process => {
            let mut status = -1;
            // SAFETY: waits for our own child.
            assert_eq!(unsafe { libc::waitpid(process, &mut status, 0) }, process);
            status == 0
        }
    }
}

#[test]
fn a_child_records_nothing_of_its_parent_and_begins_anew_if_it_is_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let appended = folder.path().join("run.rec");
    let recording = Recording::begin(RecorderConfig::new().stream_to(&appended));
    allocate(1, "of the parent");
    let records_nothing = in_a_child(|| {
        allocate(2, "of the child");
        !is_on() && write_recording_to(Vec::new()).is_err()
    });
    assert!(records_nothing);
    let begins_anew = in_a_child(|| {
        let started = start(RecorderConfig::new()).is_ok();
        allocate(3, "of the child");
        let read = Read::now();
        let own = read.allocated("of the child").len() == 1;
        started && own && read.allocated("of the parent").is_empty()
    });
    assert!(begins_anew);
    let outer = label("forks::outer");
    let inner = label("forks::inner");
    let labels_are_its_own = in_a_child(|| {
        start(RecorderConfig::new()).unwrap();
        allocate(4, "forks::before");
        // They get the numbers of the parent's.
        let own = ["forks::first", "forks::second"].map(label);
        drop(inner);
        allocate(5, "forks::within");
        let [first, second] = own;
        drop((second, first));
        drop(outer);
        allocate(6, "forks::after");
        let read = Read::now();
        let label = |tag| read.text(read.allocated(tag)[0].0.label.name).to_owned();
        ["forks::before", "forks::within", "forks::after"].map(label) == ["", "forks::second", ""]
    });
    assert!(labels_are_its_own);
    assert_eq!(Read::now().allocated("of the parent").len(), 1);
    drop(recording);
    let read = Read::of(&std::fs::read(&appended).unwrap());
    assert_eq!(read.allocated("of the parent").len(), 1);
    assert_eq!(read.allocated("of the child").len(), 0);
}
