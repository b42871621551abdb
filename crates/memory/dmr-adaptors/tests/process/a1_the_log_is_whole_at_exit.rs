//! A1: a normal end of the process leaves a whole log, also of a sink in a `static`, which is never
//! dropped.

#![cfg(feature = "logging")]
#![allow(unsafe_code, reason = "forks")]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::{Duration, Instant};

use crate::a1::{Recycler, SinkFn, check_order, churn, rows};
use dmr_adaptors::logging::{
    AllocationRecord, BackgroundConfig, BackgroundSink, CsvSink, LoggingResource,
};

/// The arguments of the child process: how to end, and the file.
const CHILD: &str = "DMR_LOGGING_EXITS";
const ROUNDS: usize = 5000;

/// A plain file and a compressed one.
const NAMES: [&str; 2] = ["log.csv", "log.csv.gz"];

/// Runs the child, and returns how long it took.
fn end(how: &str, path: &Path) -> (Output, Duration) {
    let start = Instant::now();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "a1_the_log_is_whole_at_exit::child"])
        .env(CHILD, format!("{how} {}", path.display()))
        .output()
        .unwrap();
    (output, start.elapsed())
}

fn check(how: &str, code: i32, expected: usize) {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let path = folder.path().join(name);
        let (output, _) = end(how, &path);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let rows = rows(&path);
        assert_eq!(rows.len(), expected, "{how}, {name}");
        check_order(&rows);
    }
}

#[test]
fn a_log_is_whole_when_main_returns() {
    check("returns", 0, 2 * ROUNDS);
}

#[test]
fn a_log_is_whole_when_the_process_exits() {
    check("exits", 3, 2 * ROUNDS);
}

#[test]
fn a_log_is_whole_when_a_panic_ends_the_process() {
    check("panics", 101, 2 * ROUNDS);
}

/// The child of the fork inherits the exit handlers, and what was not written yet.
#[test]
fn a_forked_child_that_exits_writes_nothing_into_its_parent_s_log() {
    check("forks", 3, 2 * ROUNDS);
}

/// Their later rows may be missing; the file is whole all the same.
#[test]
fn threads_that_go_on_while_the_process_exits_neither_hang_it_nor_spoil_the_file() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..50 {
        let path = folder.path().join(NAMES[round % NAMES.len()]);
        let (output, took) = end("exits-busy", &path);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(took < Duration::from_secs(30), "{took:?}");
        assert!(rows(&path).len() >= 3 * 2 * ROUNDS, "{round}");
    }
}

#[test]
fn a_sink_that_never_returns_does_not_keep_the_process_from_ending() {
    let (output, took) = end("exits-stuck", Path::new("none"));
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[test]
#[ignore = "run by the other tests of this file, in a process of its own"]
fn child() {
    static LOG: OnceLock<Arc<LoggingResource<Recycler>>> = OnceLock::new();
    let told = std::env::var(CHILD).unwrap();
    let (how, path) = told.split_once(' ').unwrap();
    let log = LOG.get_or_init(|| {
        Arc::new(match how {
            "exits-stuck" => {
                let stuck = SinkFn(|_: &AllocationRecord| {
                    loop {
                        std::thread::park();
                    }
                });
                let sink = BackgroundSink::new(stuck, BackgroundConfig::new()).unwrap();
                LoggingResource::new(Recycler::new(), Arc::new(sink))
            }
            _ => LoggingResource::new(Recycler::new(), Arc::new(CsvSink::create(path).unwrap())),
        })
    });
    let stream = log.upstream().stream(1);
    match how {
        "returns" => churn(log, stream, ROUNDS),
        "exits-stuck" => {
            churn(log, stream, 1);
            std::process::exit(3);
        }
        "exits" => {
            churn(log, stream, ROUNDS);
            std::process::exit(3);
        }
        "panics" => {
            churn(log, stream, ROUNDS);
            panic!("as planned");
        }
        "forks" => {
            churn(log, stream, ROUNDS);
            let start = Instant::now();
            // SAFETY: the child does nothing but exit.
            match unsafe { libc::fork() } {
                0 => std::process::exit(0),
                child => {
                    let mut status = 0;
                    // SAFETY: waits for the child that was just made.
                    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                    assert_eq!(status, 0);
                    let took = start.elapsed();
                    assert!(
                        took < Duration::from_secs(8),
                        "it waits for a thread that is not there"
                    );
                }
            }
            std::process::exit(3);
        }
        "exits-busy" => {
            let under_way = Arc::new(Barrier::new(4));
            for _ in 0..3 {
                let under_way = Arc::clone(&under_way);
                std::thread::spawn(move || {
                    churn(log, stream, ROUNDS);
                    under_way.wait();
                    churn(log, stream, usize::MAX);
                });
            }
            under_way.wait();
            std::process::exit(3);
        }
        other => panic!("{other}"),
    }
}
