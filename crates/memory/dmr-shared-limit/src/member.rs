//! The protocol of a member: join, charge, release, leave.
//!
//! All of it happens while the account is locked, and each write leaves an account in which the sum
//! of the records is at most the limit: a member can be killed before and after every one of them.
//!
//! There is no server and no list of events. A charge compares the limit with the sum of all other
//! records and what this member holds, and then writes one record. So nothing has to be undone for
//! a process that was killed: its record counts until a member finds that the process has ended,
//! and empties it.

use std::time::Duration;

use crate::error::{OverLimit, Problem};
use crate::layout::{Header, ProcessId, Record, Text};
use crate::storage::Storage;
use crate::table::Table;

/// The tag that holds the most of what a member has charged. Shown to other processes when they are
/// refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Largest<'a> {
    /// The name of the tag.
    pub tag: &'a str,
    /// Its bytes; 0 if there is no tag to show.
    pub bytes: u64,
}

/// A process that joins an account, and the header that it writes if it is the first member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) header: Header,
    pub(crate) process: ProcessId,
}

/// One member of an account, and what it has charged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    header: Header,
    pub(crate) index: usize,
    /// The record in the account, with the tag that the next write shows.
    record: Record,
    /// Bytes charged. Differs from the record while a change waits for the lock of the account.
    pub(crate) held: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Joined,
    /// The record is to be emptied.
    Leaving,
    /// The record may be that of another member.
    Left,
}

/// The refusal of a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    OverLimit(Box<OverLimit>),
    Problem(Problem),
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl Member {
    /// Joins an account; sets its limit if it has no living member.
    ///
    /// # Errors
    ///
    /// [`LimitDiffers`](Problem::LimitDiffers), [`Namespace`](Problem::Namespace),
    /// [`Full`](Problem::Full), and those of reading and writing. The records of processes that
    /// have ended are emptied even so.
    pub(crate) fn join(
        storage: &mut impl Storage,
        identity: Identity,
        patience: Duration,
    ) -> Result<Self, Problem> {
        let Identity { header, process } = identity;
        let mut table = Table::lock(storage, patience)?;
        if let Some(found) = table.header() {
            if found.namespaces != header.namespaces {
                return Err(Problem::Namespace);
            }
            if (found.uuid, found.group) != (header.uuid, header.group) {
                return Err(Problem::Corrupt { what: "of another GPU or group" });
            }
            let found = *found;
            // Before the limit changes: the dead may have charged more than the new one allows.
            table.sweep(None)?;
            if found.limit != header.limit && table.has_members() {
                return Err(Problem::LimitDiffers {
                    limit: found.limit,
                    requested: header.limit,
                    set_by: found.set_by,
                    set_by_name: found.set_by_name.into(),
                });
            }
        }
        let index = table.free_index()?;
        if !table.has_members() {
            table.write_header(&header)?;
        }
        let name = header.set_by_name;
        let tag = Text::new("");
        let record = Record { process, bytes: 0, name, tag, tag_bytes: 0 };
        table.write(index, &record)?;
        Ok(Self { header, index, record, held: 0, stage: Stage::Joined })
    }

    /// Charges `bytes`.
    ///
    /// # Errors
    ///
    /// [`OverLimit`] if they do not fit beside what the living members have charged; and those of
    /// reading and writing. Then nothing is charged.
    pub(crate) fn charge(
        &mut self,
        storage: &mut impl Storage,
        bytes: u64,
        largest: Largest<'_>,
        patience: Duration,
    ) -> Result<(), Refused> {
        let mut table = self.lock(storage, patience)?;
        let Header { limit, .. } = self.header;
        let sum = |table: &Table<'_, _>| {
            self.held.checked_add(bytes)?.checked_add(table.others(self.index))
        };
        let fits = |sum: Option<u64>| sum.is_some_and(|sum| sum <= limit);
        // Only for a charge that does not fit: it reads `/proc` for each member.
        if !fits(sum(&table)) {
            table.sweep(Some(self.index))?;
        }
        if fits(sum(&table)) {
            self.set_largest(largest);
            return Ok(self.write(&mut table, self.held + bytes)?);
        }
        // A release that found the account busy is written even so: others may need the bytes.
        if self.held != self.record.bytes {
            self.write(&mut table, self.held)?;
        }
        let used = self.held.saturating_add(table.others(self.index));
        // Only the living are left.
        let processes = table.holders();
        Err(Refused::OverLimit(Box::new(OverLimit { requested: bytes, limit, used, processes })))
    }

    /// Changes what is charged by bytes that were released, or that are in use although they may
    /// not fit. The next call writes it.
    pub(crate) fn change(&mut self, bytes: i64) {
        self.held = self.held.saturating_add_signed(bytes);
    }

    /// Sets the tag that holds the most. The next call writes it.
    pub(crate) fn set_largest(&mut self, largest: Largest<'_>) {
        self.record.tag = Text::new(largest.tag);
        self.record.tag_bytes = largest.bytes;
    }

    /// Leaves the account with the next call that writes, unless something is still charged: that
    /// stays until the process ends.
    pub(crate) fn leave(&mut self) {
        self.stage = Stage::Leaving;
    }

    /// Writes what is charged, or empties the record of a member that leaves. The last living
    /// member removes the account. If the account cannot be changed now, the next call does it.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be changed now. A record that is not emptied stays until the
    /// process ends.
    pub(crate) fn write_changes(
        &mut self,
        storage: &mut impl Storage,
        patience: Duration,
    ) -> Result<(), Problem> {
        if self.stage == Stage::Left {
            return Ok(());
        }
        let mut table = self.lock(storage, patience)?;
        if self.stage == Stage::Joined || self.held > 0 {
            return self.write(&mut table, self.held);
        }
        table.free(self.index)?;
        self.stage = Stage::Left;
        table.remove_unused()
    }

    /// Locks the account, and errors unless it is the one that this member has joined.
    fn lock<'a, S: Storage>(
        &self,
        storage: &'a mut S,
        patience: Duration,
    ) -> Result<Table<'a, S>, Problem> {
        let table = Table::lock(storage, patience)?;
        let agrees = |header: &Header| {
            (header.limit, header.uuid, header.group)
                == (self.header.limit, self.header.uuid, self.header.group)
        };
        let is_own = |record: &Record| record.process == self.record.process;
        if table.header().is_some_and(agrees) && table.record(self.index).is_some_and(is_own) {
            return Ok(table);
        }
        Err(Problem::Changed { what: "changed" })
    }

    /// Writes the record with what is charged from now on.
    fn write<S: Storage>(&mut self, table: &mut Table<'_, S>, bytes: u64) -> Result<(), Problem> {
        let record = Record { bytes, tag_bytes: self.record.tag_bytes.min(bytes), ..self.record };
        table.write(self.index, &record)?;
        self.record = record;
        self.held = bytes;
        Ok(())
    }
}
