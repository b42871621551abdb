//! An account while it is locked: its header and its records.

use std::cmp::Reverse;
use std::time::Duration;

use dmr_core::error::ProcessHolder;

use crate::error::Problem;
use crate::layout::{
    FREE, HEADER_BYTES, Header, MAX_MEMBERS, RECORD_BYTES, Record, Unreadable, VERSION, offset_of,
};
use crate::storage::Storage;

/// A locked account, as it was read. Unlocked when dropped.
pub(crate) struct Table<'a, S: Storage> {
    storage: &'a mut S,
    /// `None` in a file that is new.
    header: Option<Header>,
    /// By index; `None` where a record is free.
    records: Vec<Option<Record>>,
}

impl<'a, S: Storage> Table<'a, S> {
    /// Locks and reads an account.
    pub(crate) fn lock(storage: &'a mut S, patience: Duration) -> Result<Self, Problem> {
        // All of the file is read each time: other processes change it between any two calls.
        storage.lock(patience)?;
        // Unlocked when dropped, from here on.
        let mut table = Self { storage, header: None, records: Vec::new() };
        let bytes = table.storage.read()?;
        if bytes.is_empty() {
            return Ok(table);
        }
        let (header, records) = split(&bytes)?;
        table.header = Some(Header::decode(header)?);
        table.records = records.iter().map(Record::decode).collect::<Result<_, _>>()?;
        Ok(table)
    }

    pub(crate) fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    pub(crate) fn record(&self, index: usize) -> Option<&Record> {
        self.records.get(index)?.as_ref()
    }

    /// Returns the sum of the bytes of all records but one.
    pub(crate) fn others(&self, index: usize) -> u64 {
        let others = self.records.iter().enumerate().filter(|(at, _)| *at != index);
        others
            .filter_map(|(_, record)| record.as_ref())
            .map(|r| r.bytes)
            .fold(0, u64::saturating_add)
    }

    /// Empties the records of processes that have ended, except for the member's own.
    pub(crate) fn sweep(&mut self, own: Option<usize>) -> Result<(), Problem> {
        for index in 0..self.records.len() {
            let Some(record) = self.record(index).filter(|_| Some(index) != own) else { continue };
            let process = record.process;
            if !self.storage.is_alive(&process) {
                self.free(index)?;
            }
        }
        Ok(())
    }

    pub(crate) fn has_members(&self) -> bool {
        self.records.iter().any(Option::is_some)
    }

    /// Returns the index of a free record.
    pub(crate) fn free_index(&self) -> Result<usize, Problem> {
        let free = self.records.iter().position(Option::is_none);
        let index = free.unwrap_or(self.records.len());
        if index < MAX_MEMBERS { Ok(index) } else { Err(Problem::Full { members: MAX_MEMBERS }) }
    }

    pub(crate) fn write_header(&mut self, header: &Header) -> Result<(), Problem> {
        self.storage.write(0, &header.encode())?;
        self.header = Some(*header);
        Ok(())
    }

    /// Writes the record of a member; the index is one of the records or the one after them.
    pub(crate) fn write(&mut self, index: usize, record: &Record) -> Result<(), Problem> {
        self.storage.write(offset_of(index), &record.encode())?;
        if index == self.records.len() {
            self.records.push(None);
        }
        self.records[index] = Some(*record);
        Ok(())
    }

    /// Empties a record.
    pub(crate) fn free(&mut self, index: usize) -> Result<(), Problem> {
        self.storage.write(offset_of(index), &FREE)?;
        self.records[index] = None;
        Ok(())
    }

    /// Removes the account if no living process is a member.
    pub(crate) fn remove_unused(mut self) -> Result<(), Problem> {
        self.sweep(None)?;
        if self.has_members() { Ok(()) } else { self.storage.remove() }
    }

    /// Ignores the records of processes that have ended, and does not change the account.
    pub(crate) fn ignore_dead(&mut self) {
        for record in &mut self.records {
            if record.is_some_and(|record| !self.storage.is_alive(&record.process)) {
                *record = None;
            }
        }
    }

    /// Returns what each process has charged, most bytes first.
    pub(crate) fn holders(&self) -> Vec<ProcessHolder> {
        let mut found: Vec<ProcessHolder> = Vec::new();
        for record in self.records.iter().flatten() {
            let more = ProcessHolder {
                pid: record.process.pid,
                name: String::from(record.name).into(),
                bytes: record.bytes,
                tag: String::from(record.tag).into(),
                tag_bytes: record.tag_bytes,
            };
            match found.iter_mut().find(|holder| holder.pid == more.pid) {
                Some(holder) => merge(holder, more),
                None => found.push(more),
            }
        }
        found.sort_by_key(|holder| (Reverse(holder.bytes), holder.pid));
        found
    }
}

impl<S: Storage> Drop for Table<'_, S> {
    fn drop(&mut self) {
        self.storage.unlock();
    }
}

/// Adds another member of the same process.
fn merge(holder: &mut ProcessHolder, more: ProcessHolder) {
    holder.bytes = holder.bytes.saturating_add(more.bytes);
    if more.tag_bytes > holder.tag_bytes {
        holder.tag = more.tag;
        holder.tag_bytes = more.tag_bytes;
    }
}

/// Returns the header and the records of a file.
fn split(bytes: &[u8]) -> Result<(&[u8; HEADER_BYTES], &[[u8; RECORD_BYTES]]), Problem> {
    let truncated = Problem::Corrupt { what: "truncated" };
    let (header, records) = bytes.split_first_chunk().ok_or(truncated.clone())?;
    let (records, rest) = records.as_chunks();
    if !rest.is_empty() {
        return Err(truncated);
    }
    if records.len() > MAX_MEMBERS {
        return Err(Problem::Corrupt { what: "too long" });
    }
    Ok((header, records))
}

impl From<Unreadable> for Problem {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::NoAccount => {
                Self::Foreign { what: "the file is no account of this library".to_owned() }
            }
            Unreadable::Version(found) => Self::Version { found, expected: VERSION },
            Unreadable::Checksum => Self::Corrupt { what: "a checksum does not match" },
        }
    }
}
