//! Notes: events that are rare, and have more than fits into a ring.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use dmr_core::process::PerProcess;
use dmr_core::sync::lock;
use dmr_core::{AllocTag, ResourceError, StreamId, StreamPoolId};
use dmr_recording::StreamChange;

use crate::clock::Clock;
use crate::heap::Heap;
use crate::label;
use crate::thread::{current_query, thread_number};
use crate::waits::RecordedWait;

/// The most notes of a list that are kept.
const MOST: usize = 4096;
/// The most heaps among them: each may be megabytes.
const MOST_HEAPS: usize = 8;

/// A note, when it was made, and by which thread.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    /// Notes before it, also those that are not kept any more.
    number: u64,
    pub(crate) ticks: u64,
    pub(crate) by: By,
    pub(crate) what: What,
}

/// The thread of a note, and what it worked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct By {
    pub(crate) thread: u64,
    pub(crate) label: u16,
    pub(crate) query: u64,
}

impl By {
    /// Returns the calling thread.
    pub(crate) fn current() -> Self {
        Self { thread: thread_number(), label: label::current(), query: current_query() }
    }
}

/// The event of a note.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Refused(Refused),
    BudgetPeak { budget: AllocTag, bytes: u64, limit: u64 },
    Stream { change: StreamChange, stream: StreamId },
    DeviceLost { device: usize, message: Box<str> },
    Heap { why: &'static str, heap: Heap },
    WaitLength { wait: RecordedWait, length_ns: u64, age_ns: u64 },
}

impl What {
    /// Returns the list of the note: of lengths there may be many, which leave the others alone.
    const fn list(&self) -> usize {
        matches!(self, Self::WaitLength { .. }) as usize
    }
}

/// The number of lists.
const LISTS: usize = 2;

/// An allocation that was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Requested bytes.
    pub bytes: u64,
    /// The stream of the request.
    pub stream: Option<StreamId>,
    /// The tag of the request.
    pub tag: AllocTag,
    /// The limit that refused it.
    pub limit: Box<str>,
    /// Its bytes.
    pub limit_bytes: u64,
    /// The bytes that count against it.
    pub used: u64,
    /// Free bytes of the pool.
    pub free: u64,
    /// Bytes of the pool's largest free chunk.
    pub largest_free: u64,
}

impl Refused {
    /// Returns the refusal of an unknown request, with the limit that the error names.
    #[must_use]
    pub fn by(error: &ResourceError) -> Self {
        let mut refused = Self::default();
        match error {
            ResourceError::OutOfMemory { total, free, limit, .. } => {
                refused.limit = "device memory".into();
                refused.limit_bytes = *total;
                refused.used = total.saturating_sub(*free);
                if let Some(limit) = limit {
                    refused.limit = limit.name.into();
                    refused.limit_bytes = limit.bytes;
                    refused.used = limit.reserved;
                }
            }
            ResourceError::OutOfBudget { budget, limit, remaining, shared, .. } => {
                refused.limit = match shared.as_deref().map(|shared| &shared.problem) {
                    Some(None) => "shared limit".into(),
                    Some(Some(problem)) => format!("shared limit: {problem}").into(),
                    None if budget.is_untagged() => "budget".into(),
                    None => format!("budget {budget}").into(),
                };
                refused.limit_bytes = *limit;
                refused.used = limit.saturating_sub(*remaining);
            }
            ResourceError::Driver { call: "cuMemHostAlloc", .. } => {
                refused.limit = "page-locked host memory".into();
            }
            other => refused.limit = other.to_string().into(),
        }
        refused
    }
}

#[derive(Default)]
struct Notes {
    notes: VecDeque<Note>,
    /// The number of notes that were made.
    made: u64,
    heaps: usize,
}

/// The devices and names of the streams of the process, whether it records or not.
#[derive(Default)]
pub(crate) struct Streams {
    /// The device of each stream pool.
    devices: BTreeMap<u32, u16>,
    names: BTreeMap<StreamId, Box<str>>,
    /// The number of changes of the names.
    changes: u64,
}

static NOTES: PerProcess<[Mutex<Notes>; LISTS]> = PerProcess::new(Default::default);
static STREAMS: PerProcess<Mutex<Streams>> = PerProcess::new(Mutex::default);

/// Notes an event of a thread.
#[cold]
pub(crate) fn note(clock: Clock, by: By, what: What) {
    let is_heap = matches!(what, What::Heap { .. });
    let mut notes = lock(&NOTES.get()[what.list()]);
    let mut note = Note { number: 0, ticks: clock.ticks(), by, what };
    if notes.notes.len() == MOST {
        let oldest = notes.notes.pop_front();
        notes.heaps -= usize::from(oldest.is_some_and(|note| is_a_heap(&note)));
    }
    if is_heap && notes.heaps == MOST_HEAPS {
        let oldest = notes.notes.iter().position(is_a_heap);
        oldest.and_then(|oldest| notes.notes.remove(oldest));
        notes.heaps -= 1;
    }
    notes.heaps += usize::from(is_heap);
    note.number = notes.made;
    notes.made += 1;
    notes.notes.push_back(note);
}

fn is_a_heap(note: &Note) -> bool {
    matches!(note.what, What::Heap { .. })
}

/// Notes that were copied.
#[derive(Default)]
pub(crate) struct CopiedNotes {
    pub(crate) notes: Vec<Note>,
    pub(crate) lost: u64,
    /// The number of the first note of each list that was not made yet.
    pub(crate) next: NoteNumbers,
}

/// The number of a note, by list.
pub(crate) type NoteNumbers = [u64; LISTS];

/// Returns the numbers of notes that were made.
pub(crate) fn made() -> NoteNumbers {
    NOTES.get().each_ref().map(|list| lock(list).made)
}

/// Copies the notes from these numbers on.
pub(crate) fn copy(from: NoteNumbers) -> CopiedNotes {
    let mut copied = CopiedNotes::default();
    for (nth, list) in NOTES.get().iter().enumerate() {
        let notes = lock(list);
        // Not all are there: the oldest heap makes room for a new one.
        let skipped = notes.notes.partition_point(|note| note.number < from[nth]);
        let of_list = notes.notes.range(skipped..);
        copied.lost += notes.made.saturating_sub(from[nth]).saturating_sub(of_list.len() as u64);
        copied.notes.extend(of_list.cloned());
        copied.next[nth] = notes.made;
    }
    copied
}

/// Notes the device of a stream pool, of which recordings have the streams.
pub fn register_stream_pool(pool: StreamPoolId, device_ordinal: usize) {
    let Some(stream) = StreamId::from_parts(pool, 0, 0) else { return };
    let device = u16::try_from(device_ordinal).unwrap_or(u16::MAX);
    lock(STREAMS.get()).devices.insert(pool_of(stream), device);
}

/// Names a stream in recordings.
pub fn name_stream(stream: StreamId, name: &str) {
    let mut streams = lock(STREAMS.get());
    streams.names.insert(permanent(stream), name.into());
    streams.changes += 1;
}

/// Forgets the name of a stream that is retired: another one may get its slot.
pub(crate) fn forget_name(stream: StreamId) {
    lock(STREAMS.get()).names.remove(&permanent(stream));
}

/// Returns the device of a stream pool.
pub(crate) fn device_of(pool: u32) -> u16 {
    lock(STREAMS.get()).devices.get(&pool).copied().unwrap_or(0)
}

/// The names of all streams.
pub(crate) struct Names {
    /// The number of changes so far.
    pub(crate) changes: u64,
    pub(crate) streams: Vec<NamedStream>,
}

/// Returns the names of all streams; `None` if this was the number of changes already.
pub(crate) fn names_since(changes: u64) -> Option<Names> {
    let streams = lock(STREAMS.get());
    if streams.changes == changes {
        return None;
    }
    let changes = streams.changes;
    let mut names = Names { changes, streams: Vec::new() };
    for (stream, name) in &streams.names {
        names.streams.push(NamedStream { stream: *stream, name: name.clone() });
    }
    Some(names)
}

/// A stream that has a name.
pub(crate) struct NamedStream {
    pub(crate) stream: StreamId,
    pub(crate) name: Box<str>,
}

/// Returns the number of a stream's pool, from its id.
pub(crate) const fn pool_of(stream: StreamId) -> u32 {
    (stream.as_u64() >> 40) as u32
}

/// Returns the id of a stream without its lease.
fn permanent(stream: StreamId) -> StreamId {
    let id = stream.pool().and_then(|pool| StreamId::from_parts(pool, stream.slot(), 0));
    id.unwrap_or(stream)
}
