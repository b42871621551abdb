//! A file can be appended to, also one whose writer was killed.

use std::fs::{self, File};
use std::io::Write;

use dmr_recording::{Block, Event, Problem, Reader, Record, StreamNumber, Writer};

use crate::support::start;

fn allocation(tag: dmr_recording::StringId) -> Record {
    Record::new(Event::Allocate(Block { address: 256, bytes: 8, tag, ..Block::default() }))
}

/// Returns the tag of each allocation of a file.
fn tags(path: &std::path::Path) -> Vec<String> {
    let mut reader = Reader::open(path).unwrap();
    let mut tags = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        if let Event::Allocate(block) = record.event {
            tags.push(reader.text(block.tag).to_owned());
        }
    }
    tags
}

#[test]
fn a_section_is_appended_behind_the_last_whole_chunk_and_keeps_its_own_texts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.rec");
    for (nth, tag) in ["first", "second", "third"].into_iter().enumerate() {
        let mut writer = Writer::append(&path, &start(), "clock", "program").unwrap();
        let id = writer.intern(tag);
        writer.write(&allocation(id)).unwrap();
        let mut file = writer.finish().unwrap();
        // The writer after it was killed within a chunk.
        file.write_all(&vec![7; 3 + nth]).unwrap();
    }
    assert_eq!(
        Reader::open(&path).unwrap().last().unwrap().unwrap_err().problem,
        Problem::Truncated
    );
    let last = Writer::append(&path, &start(), "clock", "program").unwrap();
    last.finish().unwrap();
    assert_eq!(tags(&path), ["first", "second", "third"]);
}

/// A file of version 1 is one of version 2 without the kinds that are new.
#[test]
fn an_older_file_is_read_and_what_is_appended_makes_it_a_newer_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.rec");
    let mut writer = Writer::create(&path, &start(), "clock", "program").unwrap();
    let id = writer.intern("first");
    writer.write(&allocation(id)).unwrap();
    writer.finish().unwrap();
    let mut older = fs::read(&path).unwrap();
    older[8..12].copy_from_slice(&1_u32.to_le_bytes());
    fs::write(&path, &older).unwrap();
    assert_eq!(tags(&path), ["first"]);
    let mut writer = Writer::append(&path, &start(), "clock", "program").unwrap();
    let wait = Event::HostWait { stream: StreamNumber::new(1, 2), length_ns: 7 };
    writer.write(&Record::new(wait)).unwrap();
    writer.finish().unwrap();
    let newer = fs::read(&path).unwrap();
    assert_eq!(newer[8..12], 2_u32.to_le_bytes());
    assert_eq!(newer[12..older.len()], older[12..]);
    let records: Vec<_> = Reader::open(&path).unwrap().map(Result::unwrap).collect();
    assert!(records.iter().any(|record| record.event == wait));
    assert_eq!(tags(&path), ["first"]);
}

#[test]
fn a_file_that_is_no_recording_is_not_appended_to_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    fs::write(&path, "my notes, which are no recording").unwrap();
    let refused = Writer::append(&path, &start(), "clock", "program").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidData);
    assert_eq!(fs::read(&path).unwrap(), b"my notes, which are no recording");
}

#[test]
fn a_recording_that_is_damaged_within_is_not_cut_off_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.rec");
    let mut writer = Writer::create(&path, &start(), "clock", "program").unwrap();
    for _ in 0..3 {
        writer.write(&allocation(dmr_recording::StringId::EMPTY)).unwrap();
        writer.flush().unwrap();
    }
    writer.finish().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    Writer::append(&path, &start(), "clock", "program").unwrap_err();
    assert_eq!(File::open(&path).unwrap().metadata().unwrap().len(), bytes.len() as u64);
}
