//! A1: what is logged is what is read: in the project's own format, and in RMM's.

#![cfg(feature = "logging")]

use std::sync::Arc;

use crate::a1::{Recycler, rows};
use dmr_adaptors::logging::{
    AllocationRecord, CsvSink, InMemorySink, LoggingResource, LoggingSink, SinkError, with_query,
};
use dmr_core::record::RecordAction;
use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_trace::{RecordWriter, TraceFormat};

/// Passes each record to two sinks.
#[derive(Debug)]
struct Both(CsvSink, Arc<InMemorySink>);

impl LoggingSink for Both {
    fn record(&self, record: &AllocationRecord) -> Result<(), SinkError> {
        self.0.record(record)?;
        self.1.record(record)
    }

    fn flush(&self) -> Result<(), SinkError> {
        self.0.flush()
    }
}

/// Every kind of row, with tags that need quotes.
fn calls(resource: &LoggingResource<Recycler>) {
    let base = resource.upstream();
    for (slot, name) in [(0, "plain"), (1, "a, b"), (31, "say \"x\""), (4095, " blanks "), (2, "é")]
    {
        with_query(u64::MAX - slot as u64, || {
            let block = resource
                .allocate(1 << slot.min(40), base.stream(slot), AllocTag::new(name))
                .unwrap();
            resource.deallocate(block).unwrap();
        });
    }
    resource.allocate(0, base.stream(9), AllocTag::new("zero, bytes")).unwrap_err();
    let other = Recycler::new();
    let stranger = other.allocate(7, other.stream(1), AllocTag::UNTAGGED).unwrap();
    let _kept = resource.deallocate(stranger).unwrap_err();
    resource.try_reap().unwrap();
    resource.reap_pending().unwrap_err();
}

#[test]
fn every_row_of_the_own_format_comes_back_as_it_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    for (name, gzip) in [("log.csv", false), ("log.csv.gz", true)] {
        let path = folder.path().join(name);
        let csv = CsvSink::create(&path).unwrap();
        let kept = Arc::new(InMemorySink::new());
        let both = Arc::new(Both(csv, Arc::clone(&kept)));
        calls(&LoggingResource::new(Recycler::new(), both.clone()));
        both.flush().unwrap();
        assert_eq!(rows(&path), kept.records());
        assert_eq!(kept.len(), 14);
        let starts_as_gzip = std::fs::read(&path).unwrap().starts_with(&[0x1f, 0x8b]);
        assert_eq!(starts_as_gzip, gzip);
    }
}

#[test]
fn a_tag_with_a_line_break_stays_one_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let resource = LoggingResource::new(Recycler::new(), Arc::new(CsvSink::create(&path).unwrap()));
    let stream = resource.upstream().stream(1);
    let block = resource.allocate(1, stream, AllocTag::new("two\r\nlines")).unwrap();
    resource.deallocate(block).unwrap();
    drop(resource);
    let rows = rows(&path);
    assert_eq!((rows.len(), rows[0].tag.name()), (2, "two  lines"));
}

#[test]
fn a_log_in_the_format_of_rmm_has_its_columns_and_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let kept = Arc::new(InMemorySink::new());
    calls(&LoggingResource::new(Recycler::new(), kept.clone()));
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = RecordWriter::with_format(file, TraceFormat::Rmm).unwrap();
    for record in kept.records() {
        writer.write(&record).unwrap();
    }

    // As RMM writes them: allocations, allocations that failed, frees.
    let recorded: Vec<_> = kept
        .records()
        .into_iter()
        .filter(|row| match row.action {
            RecordAction::Allocate => true,
            RecordAction::Deallocate => row.failure.is_none(),
            _ => false,
        })
        .collect();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "Thread,Time,Action,Pointer,Size,Stream");
    assert_eq!(lines.len(), 1 + recorded.len());
    let fields = |line: usize| lines[line].split(',').collect::<Vec<_>>();
    let thread = recorded[0].thread.to_string();
    let ptr = format!("{:#x}", recorded[0].ptr);
    assert_eq!(fields(1)[0], thread);
    assert_eq!(fields(1)[2..], ["allocate", &ptr, "1", "0"]);
    assert_eq!(fields(4)[2..], ["free", &ptr, "2", "0x1"]);
    assert_eq!(fields(7)[2..], ["allocate", &ptr, "1099511627776", "0xfff"]);
    assert_eq!(fields(11)[2..], ["allocate failure", "(nil)", "0", "0x9"]);
    let day = 86_400_000_000_000;
    for (line, row) in recorded.iter().enumerate() {
        let micros = row.time_ns % day / 1000;
        let seconds = micros / 1_000_000;
        let micros = micros % 1_000_000;
        let h = seconds / 3600;
        let m = seconds / 60 % 60;
        let s = seconds % 60;
        assert_eq!(fields(line + 1)[1], format!("{h:02}:{m:02}:{s:02}.{micros:06}"));
    }

    for (read, row) in rows(&path).iter().zip(&recorded) {
        assert_eq!((read.action, read.ptr, read.bytes), (row.action, row.ptr, row.bytes));
        assert_eq!((read.stream, read.thread), (row.stream, row.thread));
        assert_eq!(read.failure.is_some(), row.failure.is_some());
    }
}
