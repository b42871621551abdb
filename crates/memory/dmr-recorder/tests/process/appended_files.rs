//! A file to which all events are appended, also by several runs.

use std::time::Duration;

use dmr_core::{StreamId, StreamPoolId};
use dmr_recorder::{
    RecorderConfig, StartError, hooks, name_stream, start, status, stream_number, write_recording,
};
use dmr_recording::{Event, StreamChange};

use crate::support::{Read, Recording, allocate};

#[test]
fn every_event_is_appended_in_order_and_the_next_run_adds_a_section() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.rec");
    for run in 0..2 {
        let mut config = RecorderConfig::new().with_events_per_thread(1 << 15).stream_to(&path);
        config.stream_interval = Duration::from_millis(1);
        let _recording = Recording::begin(config);
        for nth in 0..20_000 {
            allocate(nth + 1, &format!("appended::{run}"));
            if nth % 5_000 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
    }
    let read = Read::of(&std::fs::read(&path).unwrap());
    for run in 0..2 {
        let events = read.allocated(&format!("appended::{run}"));
        assert_eq!(events.len(), 20_000);
        assert!(events.is_sorted_by(|(_, a), (_, b)| a.bytes < b.bytes));
        assert!(events.is_sorted_by(|(a, _), (b, _)| a.time_ns <= b.time_ns));
    }
    let starts = read.records.iter().filter(|record| matches!(record.event, Event::Start(_)));
    assert_eq!(starts.count(), 2);
    assert_eq!(read.summary.unwrap().lost, 0);
}

#[test]
fn a_file_that_is_no_recording_is_refused_before_anything_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    std::fs::write(&path, "my notes").unwrap();
    let _recording = Recording::begin(RecorderConfig::new());
    dmr_recorder::stop();
    let refused = start(RecorderConfig::new().stream_to(&path));
    assert!(matches!(refused, Err(StartError::Stream { .. })), "{refused:?}");
    assert!(!status().is_on);
    assert_eq!(std::fs::read(&path).unwrap(), b"my notes");
}

#[test]
fn a_recording_that_is_requested_of_a_recorder_that_is_off_leaves_the_file_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("before.rec");
    let recording = Recording::begin(RecorderConfig::new());
    allocate(1, "appended::before");
    write_recording(&path).unwrap();
    let before = std::fs::read(&path).unwrap();
    dmr_recorder::stop();
    let refused = write_recording(&path).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::NotConnected);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    drop(recording);
}

#[test]
fn a_stream_that_gets_another_name_is_written_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.rec");
    let pool = StreamPoolId::next().unwrap();
    let stream = StreamId::from_parts(pool, 1, 1).unwrap();
    let retired = StreamId::from_parts(pool, 2, 1).unwrap();
    let recording = Recording::begin(RecorderConfig::new().stream_to(&path));
    name_stream(stream, "the first name");
    name_stream(retired, "retired");
    std::thread::sleep(Duration::from_millis(100));
    hooks::stream_retired(retired);
    name_stream(StreamId::from_parts(pool, 3, 1).unwrap(), "in its place");
    name_stream(stream, "the second name");
    drop(recording);
    let read = Read::of(&std::fs::read(&path).unwrap());
    let name = |record: &dmr_recording::Record| match record.event {
        Event::Stream { change: StreamChange::Named, stream: of, name }
            if of == stream_number(stream) =>
        {
            Some(read.text(name).to_owned())
        }
        _ => None,
    };
    let last = read.records.iter().filter_map(name).next_back();
    assert_eq!(last.as_deref(), Some("the second name"));
}
