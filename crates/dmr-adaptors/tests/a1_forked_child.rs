//! A1: in a forked child, where the writing thread does not exist, nothing hangs and the parent's
//! log is left alone.

#![cfg(all(unix, feature = "logging"))]
#![allow(unsafe_code, reason = "forks")]

mod a1;

use std::sync::Arc;
use std::time::{Duration, Instant};

use a1::{Recycler, churn, rows};
use dmr_adaptors::logging::{CsvSink, CsvSinkConfig, LoggingResource, SinkError};

#[test]
fn a_forked_child_does_not_hang_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for gzip in [false, true] {
        let path = folder.path().join("log.csv");
        let config = CsvSinkConfig::new().with_gzip(gzip).with_queue_records(64);
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

/// `None`: it did not end within ten seconds, and is killed.
fn exit_code(child: libc::pid_t) -> Option<i32> {
    let start = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: asks after our own child.
        if unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child {
            return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        }
        if start.elapsed() > Duration::from_secs(10) {
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
