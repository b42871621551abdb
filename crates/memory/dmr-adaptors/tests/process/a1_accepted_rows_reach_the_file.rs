//! A1: accepted rows reach the file: on `flush`, even if the process aborts right after it, and
//! when the sink's last owner is dropped.

#![cfg(feature = "logging")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::a1::{Recycler, SinkFn, check_order, churn, rows};
use dmr_adaptors::logging::{
    AllocationRecord, BackgroundConfig, BackgroundSink, CsvSink, InMemorySink, LoggingResource,
    LoggingSink, SinkError,
};

fn logged(path: &Path) -> LoggingResource<Recycler> {
    LoggingResource::new(Recycler::new(), Arc::new(CsvSink::create(path).unwrap()))
}

/// A plain file and a compressed one.
const NAMES: [&str; 2] = ["log.csv", "log.csv.gz"];

/// The argument of the child process: the file.
const CHILD: &str = "DMR_LOGGING_ABORTS";
const CHILD_THREADS: usize = 3;
const CHILD_ROUNDS: usize = 5000;

#[test]
fn every_flushed_row_survives_an_abort_right_after_the_flush() {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let path = folder.path().join(name);
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "a1_accepted_rows_reach_the_file::flush_and_abort"])
            .env(CHILD, &path)
            .output()
            .unwrap()
            .status;
        assert!(!status.success() && status.code().is_none_or(|code| code > 128), "{status}");
        let rows = rows(&path);
        assert_eq!(rows.len(), 2 * CHILD_THREADS * CHILD_ROUNDS, "{name}");
        check_order(&rows);
    }
}

/// One thread has ended, one sleeps, one flushes.
#[test]
#[ignore = "run by the test above, in a process of its own"]
fn flush_and_abort() {
    let path = std::env::var(CHILD).unwrap();
    let resource = Arc::new(logged(Path::new(&path)));
    let stream = resource.upstream().stream(1);
    let ended = Arc::clone(&resource);
    std::thread::spawn(move || churn(&ended, stream, CHILD_ROUNDS)).join().unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let parked = Arc::clone(&resource);
    let is_done = Arc::clone(&done);
    std::thread::spawn(move || {
        churn(&parked, stream, CHILD_ROUNDS);
        is_done.store(true, Ordering::Release);
        loop {
            std::thread::park();
        }
    });
    churn(&resource, stream, CHILD_ROUNDS);
    while !done.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    resource.flush().unwrap();
    std::process::abort();
}

#[test]
fn each_flush_leaves_a_file_that_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let path = folder.path().join(name);
        let resource = logged(&path);
        assert_eq!(rows(&path).len(), 0, "{name}");
        for flush in 1..4 {
            churn(&resource, resource.upstream().stream(1), 100);
            resource.flush().unwrap();
            resource.flush().unwrap();
            assert_eq!(rows(&path).len(), flush * 200, "{name}");
        }
    }
}

#[test]
fn dropping_the_last_owner_writes_everything() {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let path = folder.path().join(name);
        let resource = logged(&path);
        let stream = resource.upstream().stream(1);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| churn(&resource, stream, 3000));
            }
        });
        drop(resource);
        assert_eq!(rows(&path).len(), 18_000, "{name}");
    }
}

#[test]
fn rows_reach_the_file_by_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let soon = BackgroundConfig::new().with_flush_interval(Duration::from_millis(20));
    let sink = CsvSink::with_config(&path, soon).unwrap();
    let resource = LoggingResource::new(Recycler::new(), Arc::new(sink));
    churn(&resource, resource.upstream().stream(1), 10);
    let start = Instant::now();
    while rows(&path).len() < 20 {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn rows_of_threads_that_have_ended_are_written() {
    let kept = Arc::new(InMemorySink::new());
    let sink = BackgroundSink::new(Arc::clone(&kept), BackgroundConfig::new()).unwrap();
    let resource = LoggingResource::new(Recycler::new(), Arc::new(sink));
    let stream = resource.upstream().stream(1);
    for _ in 0..50 {
        std::thread::scope(|scope| {
            scope.spawn(|| churn(&resource, stream, 10)).join().unwrap();
        });
    }
    resource.flush().unwrap();
    assert_eq!(kept.len(), 1000);
    assert_eq!(check_order(&kept.records()), 0);
}

#[test]
fn flushes_of_many_threads_all_return() {
    let kept = Arc::new(InMemorySink::new());
    let sink = BackgroundSink::new(Arc::clone(&kept), BackgroundConfig::new()).unwrap();
    let resource = LoggingResource::new(Recycler::new(), Arc::new(sink));
    let stream = resource.upstream().stream(1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 1..50 {
                    churn(&resource, stream, 5);
                    resource.flush().unwrap();
                    assert!(kept.len() >= round * 10);
                }
            });
        }
    });
}

#[test]
fn what_the_inner_sink_refuses_is_counted_and_the_next_flush_says_why() {
    let refuses = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&refuses);
    let inner = SinkFn(move |record: &AllocationRecord| match asked.load(Ordering::Relaxed) {
        true if record.action == dmr_adaptors::logging::RecordAction::Deallocate => {
            std::panic::resume_unwind(Box::new("broken"))
        }
        true => Err(SinkError::other("disk on fire")),
        false => Ok(()),
    });
    let sink = Arc::new(BackgroundSink::new(inner, BackgroundConfig::new()).unwrap());
    let resource = LoggingResource::new(Recycler::new(), sink.clone());
    let stream = resource.upstream().stream(1);
    churn(&resource, stream, 2);
    let said = resource.flush().unwrap_err().to_string();
    assert_eq!(said, "4 records were taken and then lost; the first because: disk on fire");
    assert_eq!((sink.lost_records(), resource.dropped_records()), (4, 0));
    refuses.store(false, Ordering::Relaxed);
    churn(&resource, stream, 2);
    resource.flush().unwrap();
    assert_eq!(sink.lost_records(), 4);
}

/// The sink behind the queues holds the last owner of its own queues, and drops it.
#[test]
fn a_sink_that_is_dropped_on_its_own_thread_ends() {
    type Owner = OnceLock<std::sync::Mutex<Option<Arc<dyn LoggingSink>>>>;
    let owner = Arc::new(Owner::new());
    let ended = Arc::new(AtomicBool::new(false));
    let owned = Arc::clone(&owner);
    let end = Arc::clone(&ended);
    let inner = SinkFn(move |_: &AllocationRecord| {
        drop(owned.wait().lock().unwrap().take());
        end.store(true, Ordering::Release);
        Ok(())
    });
    let sink: Arc<dyn LoggingSink> =
        Arc::new(BackgroundSink::new(inner, BackgroundConfig::new()).unwrap());
    let resource = LoggingResource::new(Recycler::new(), sink.clone());
    churn(&resource, resource.upstream().stream(1), 1);
    drop(resource);
    owner.set(std::sync::Mutex::new(Some(sink))).ok().unwrap();
    let start = Instant::now();
    while !ended.load(Ordering::Acquire) {
        assert!(start.elapsed() < Duration::from_secs(20), "the sink waits for its own thread");
        std::thread::yield_now();
    }
}

#[test]
fn a_log_replaces_the_file_that_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("log.csv");
    std::fs::write(&path, "something else\n".repeat(1000)).unwrap();
    drop(CsvSink::create(&path).unwrap());
    assert_eq!(rows(&path).len(), 0);
}
