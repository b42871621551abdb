//! Files and recordings for several tests.

use std::path::PathBuf;

use dmr_recording::{Block, Event, Record, Start, StreamNumber, Writer};
use dmr_report::Model;

pub(crate) const MIB: u64 = 1 << 20;

/// A file of this content, removed with the folder.
pub(crate) fn file(name: &str, content: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    (folder, path)
}

/// Reads a file of this content.
pub(crate) fn open(content: &[u8]) -> Model {
    let (_folder, path) = file("file", content);
    dmr_report::open(path).unwrap()
}

/// Returns the error of a file of this content.
pub(crate) fn error(content: &[u8]) -> String {
    let (_folder, path) = file("file", content);
    dmr_report::open(path).unwrap_err().to_string()
}

/// Writes a recording: each event at its time in nanoseconds.
pub(crate) fn recording(write: impl FnOnce(&mut Recorder)) -> Vec<u8> {
    let writer = Writer::new(Vec::new(), &Start::default()).unwrap();
    let mut recorder = Recorder { writer };
    write(&mut recorder);
    recorder.writer.finish().unwrap()
}

pub(crate) struct Recorder {
    pub(crate) writer: Writer<Vec<u8>>,
}

impl Recorder {
    pub(crate) fn at(&mut self, time_ns: u64, event: Event) {
        self.writer.write(&Record { time_ns, ..Record::new(event) }).unwrap();
    }

    /// Makes a block whose generation is its number.
    pub(crate) fn block(&mut self, generation: u64, address: u64, bytes: u64, tag: &str) -> Block {
        let stream = StreamNumber::new(1, 0);
        Block { address, bytes, generation, stream, tag: self.writer.intern(tag) }
    }
}
