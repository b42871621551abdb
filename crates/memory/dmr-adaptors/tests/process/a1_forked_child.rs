//! A1: in a forked child, where the writing thread does not exist, nothing hangs and the parent's
//! log is left alone.

#![cfg(all(unix, feature = "logging"))]
#![allow(unsafe_code, reason = "forks")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::a1::{Recycler, SinkFn, churn, rows};
use dmr_adaptors::logging::{
    AllocationRecord, BackgroundConfig, BackgroundSink, CsvSink, InMemorySink, LoggingResource,
    LoggingSink, SinkError,
};
use dmr_testkit::exit_code;

#[test]
fn a_forked_child_does_not_hang_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["log.csv", "log.csv.gz"] {
        let path = folder.path().join(name);
        let config = BackgroundConfig::new().with_queue_records(64);
        let sink = CsvSink::with_config(&path, config).unwrap();
        let resource = LoggingResource::new(Recycler::new(), Arc::new(sink));
        let stream = resource.upstream().stream(1);
        churn(&resource, stream, 10);

        // SAFETY: the child makes a few calls and ends.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork");
        if child == 0 {
            // More than a queue holds.
            churn(&resource, stream, 1000);
            let closed = matches!(resource.flush(), Err(SinkError::Closed));
            let dropped = resource.dropped_records() == 2000;
            drop(resource);
            // SAFETY: ends the child, without the parent's handlers.
            unsafe { libc::_exit(i32::from(!closed) + 2 * i32::from(!dropped)) };
        }
        assert_eq!(exit_code(child), Some(0));
        churn(&resource, stream, 10);
        drop(resource);
        assert_eq!(rows(&path).len(), 40);
    }
}

/// Any lock of a sink may be held by a thread that the child does not have.
#[test]
fn a_forked_child_calls_no_sink() {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let sink = SinkFn(move |_: &AllocationRecord| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let background = BackgroundSink::new(InMemorySink::new(), BackgroundConfig::new()).unwrap();
    let record = record();
    let resource = LoggingResource::new(Recycler::new(), Arc::new(sink));
    let stream = resource.upstream().stream(1);

    // SAFETY: the child makes a few calls and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        churn(&resource, stream, 5);
        let is_silent = calls.load(Ordering::Relaxed) == 0 && resource.dropped_records() == 10;
        let is_closed = matches!(background.record(&record), Err(SinkError::Closed));
        // SAFETY: ends the child, without the parent's handlers.
        unsafe { libc::_exit(i32::from(!is_silent) + 2 * i32::from(!is_closed)) };
    }
    assert_eq!(exit_code(child), Some(0));
    churn(&resource, stream, 5);
    assert_eq!((calls.load(Ordering::Relaxed), resource.dropped_records()), (10, 0));
    background.record(&record).unwrap();
}

fn record() -> AllocationRecord {
    let sink = Arc::new(InMemorySink::new());
    let resource = LoggingResource::new(Recycler::new(), sink.clone());
    churn(&resource, resource.upstream().stream(1), 1);
    sink.records().remove(0)
}
