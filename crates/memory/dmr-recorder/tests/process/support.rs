//! One recorder at a time, and the events that a recording has.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dmr_core::{AllocTag, Generation, StreamId, StreamPoolId};
use dmr_recorder::hooks::{self, RecordedBlock};
use dmr_recorder::{RecorderConfig, start, stop, write_recording_to};
use dmr_recording::{Block, Event, Reader, Record, Start, Summary};

/// The recorder, started; stopped when this is dropped.
pub(crate) struct Recording(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

static ONE: Mutex<()> = Mutex::new(());

impl Recording {
    pub(crate) fn begin(config: RecorderConfig) -> Self {
        let held = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        start(config).unwrap();
        Self(held)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        stop();
    }
}

/// A recording that was read.
pub(crate) struct Read {
    pub(crate) start: Start,
    pub(crate) records: Vec<Record>,
    pub(crate) texts: Vec<String>,
    pub(crate) summary: Option<Summary>,
}

impl Read {
    pub(crate) fn of(file: &[u8]) -> Self {
        let mut reader = Reader::new(file).unwrap();
        let records = reader.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
        let ids = 0..=reader.texts() as u32;
        let texts = ids.map(|id| reader.text(dmr_recording::StringId(id)).to_owned()).collect();
        let summary = records.iter().rev().find_map(|record| match record.event {
            Event::Summary(summary) => Some(summary),
            _ => None,
        });
        let start = records.iter().find_map(|record| match record.event {
            Event::Start(start) => Some(start),
            _ => None,
        });
        Self { start: start.unwrap(), records, texts, summary }
    }

    /// Reads the events that are kept now.
    pub(crate) fn now() -> Self {
        let mut file = Vec::new();
        write_recording_to(&mut file).unwrap();
        Self::of(&file)
    }

    pub(crate) fn text(&self, id: dmr_recording::StringId) -> &str {
        &self.texts[id.0 as usize]
    }

    /// Returns the allocations whose tag begins with this, with their records.
    pub(crate) fn allocated(&self, tag: &str) -> Vec<(Record, Block)> {
        let of_tag = |record: &Record| match record.event {
            Event::Allocate(block) if self.text(block.tag).starts_with(tag) => {
                Some((*record, block))
            }
            _ => None,
        };
        self.records.iter().filter_map(of_tag).collect()
    }
}

pub(crate) fn stream() -> StreamId {
    StreamId::from_parts(StreamPoolId::next().unwrap(), 3, 1).unwrap()
}

/// Records an allocation of `bytes` bytes at an address that tells them.
pub(crate) fn allocate(bytes: u64, tag: &str) {
    let stream = stream();
    let tag = AllocTag::intern(tag);
    let generation = Generation::next().get();
    hooks::allocated(|| RecordedBlock { address: bytes << 8, bytes, generation, stream, tag });
}
