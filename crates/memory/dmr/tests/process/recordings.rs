//! The recorder of the process, for one test at a time, and what is in its recordings.

#![cfg(all(feature = "budget", feature = "pool", feature = "spill"))]

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dmr::dmr_recorder::{stop, write_recording_to};
use dmr::prelude::*;
use dmr_recording::{Event, Reader, Record};

static ONE: Mutex<()> = Mutex::new(());

pub(crate) struct Recording(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Recording {
    pub(crate) fn begin() -> Self {
        Self(ONE.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        stop();
    }
}

/// The records of one stream pool.
pub(crate) struct Read {
    pub(crate) records: Vec<Record>,
    texts: Vec<String>,
}

impl Read {
    pub(crate) fn of(file: &[u8]) -> Self {
        let mut reader = Reader::new(file).unwrap();
        let records = reader.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
        let ids = (0..=reader.texts() as u32).map(dmr_recording::StringId);
        let texts = ids.map(|id| reader.text(id).to_owned()).collect();
        Self { records, texts }
    }

    pub(crate) fn now() -> Self {
        let mut file = Vec::new();
        write_recording_to(&mut file).unwrap();
        Self::of(&file)
    }

    pub(crate) fn in_folder(folder: &Path, why: &str) -> Vec<Self> {
        let mut paths: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let is_it = |path: &&std::path::PathBuf| path.to_string_lossy().contains(why);
        paths.iter().filter(is_it).map(|path| Self::of(&std::fs::read(path).unwrap())).collect()
    }

    pub(crate) fn text(&self, id: dmr_recording::StringId) -> &str {
        &self.texts[id.0 as usize]
    }

    pub(crate) fn count(&self, is_it: impl Fn(&Self, &Record) -> bool) -> usize {
        self.records.iter().filter(|record| is_it(self, record)).count()
    }

    pub(crate) fn regions(&self, tag: AllocTag) -> Vec<dmr_recording::Region> {
        let region = |record: &Record| match record.event {
            Event::Region(region) if self.text(region.tag) == tag.name() => Some(region),
            _ => None,
        };
        self.records.iter().filter_map(region).collect()
    }
}
