//! A1: `create` and `flush` return an error where a file cannot be written, and nothing panics;
//! rows that were kept meanwhile are written once it can be.

#![cfg(all(unix, feature = "logging"))]
#![allow(unsafe_code, reason = "makes a named pipe")]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use crate::a1::{Recycler, churn};
use dmr_adaptors::logging::{CsvSink, LoggingResource, SinkError};

#[cfg(target_os = "linux")]
#[test]
fn creating_a_log_on_a_full_disk_is_an_error() {
    // The header is written at once.
    let error = CsvSink::create("/dev/full").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(CsvSink::create("/no/such/folder/log.csv").is_err());
}

/// A named pipe without a reader is a file that cannot be written, until there is one.
#[test]
fn what_is_kept_is_written_later_and_what_is_not_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let name = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a string that ends in a zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let reader = open_reader(&path);
    let sink = Arc::new(CsvSink::create(&path).unwrap());
    let resource = LoggingResource::new(Recycler::new(), sink.clone());
    let stream = resource.upstream().stream(1);
    drop(reader);

    churn(&resource, stream, 50);
    let error = resource.flush().unwrap_err();
    assert!(matches!(&error, SinkError::Io(e) if e.kind() == io::ErrorKind::BrokenPipe), "{error}");
    assert_eq!(sink.lost_records(), 0);

    churn(&resource, stream, 10_000);
    let error = resource.flush().unwrap_err();
    let lost = sink.lost_records();
    assert!(matches!(error, SinkError::Lost { records, .. } if records == lost), "{error}");
    assert!(lost > 1000 && lost < 20_000, "{lost}");
    assert_eq!(resource.dropped_records(), 0);

    let reader = open_reader(&path);
    let orders = std::thread::scope(|scope| {
        let read = scope.spawn(|| orders(reader));
        resource.flush().unwrap();
        churn(&resource, stream, 50);
        drop((resource, sink));
        read.join().unwrap()
    });
    assert_eq!(orders.len() as u64, 2 * (50 + 10_000 + 50) - lost);
    assert!(orders.is_sorted_by(|earlier, later| earlier < later), "a row twice");
}

fn open_reader(path: &Path) -> File {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap()
}

/// Returns the orders of the rows, until the other end is closed.
fn orders(pipe: File) -> Vec<u64> {
    let lines = BufReader::new(Patient(pipe)).lines().map(Result::unwrap);
    lines.filter_map(|line| line.split(',').next()?.parse().ok()).collect()
}

/// Reads a pipe, and waits for bytes where there are none yet.
struct Patient(File);

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                read => return read,
            }
        }
    }
}
