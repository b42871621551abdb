//! Writing: events of rings and notes become the records of a file.

use std::collections::HashMap;
use std::io::{self, Write};

use dmr_core::{AllocTag, StreamId};
use dmr_recording::{
    Block, Event, LabelId, Record, Refusal, Region, SpanChange, SpillDirection, StreamChange,
    StreamNumber, StringId, Writer,
};

use crate::attached::{self, RingsThen};
use crate::clock::Times;
use crate::heap::Heap;
use crate::label::{self, Label};
use crate::notes::{self, By, Note, NoteNumbers, Refused, What, device_of, pool_of};
use crate::raw::{Kind, RingEvent};
use crate::ring::WORDS;
use crate::waits::RecordedWait;

/// The numbers of the events and notes up to which a writer has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// By ring.
    rings: Vec<u64>,
    notes: NoteNumbers,
    /// Events of threads without a ring.
    lost: u64,
}

/// Events that were copied, and are not written yet.
pub(crate) struct Collected {
    pub(crate) items: Vec<Item>,
    pub(crate) lost: u64,
    /// The ticks from which on no event of a ring is missing.
    pub(crate) complete_from: u64,
}

pub(crate) enum Item {
    Event(RingEvent),
    Note(Note),
}

impl Item {
    fn ticks(&self) -> u64 {
        match self {
            Self::Event(event) => event.ticks,
            Self::Note(note) => note.ticks,
        }
    }
}

impl Progress {
    /// Returns the progress of a writer that writes nothing of what has happened so far.
    pub(crate) fn now() -> Self {
        let rings = attached::all().rings.iter().map(|ring| ring.ring.pushed()).collect();
        Self { rings, notes: notes::made(), lost: attached::lost() }
    }

    /// Copies what has happened since, oldest first.
    ///
    /// Leaves out the events of rings after the moment at which it begins: a ring that is read late
    /// has events that come after some of a ring that was read early, and that were not there yet.
    pub(crate) fn collect(&mut self) -> Collected {
        let mut items = Vec::new();
        let mut lost = 0;
        let mut complete_from = 0;
        let RingsThen { ticks: until, rings } = attached::all();
        for (nth, ring) in rings.into_iter().enumerate() {
            if nth == self.rings.len() {
                self.rings.push(0);
            }
            let mut copied = ring.ring.copy(self.rings[nth]);
            let is_before = |[ticks, ..]: &[u64; WORDS]| *ticks <= until;
            let before = copied.events.partition_point(is_before);
            copied.next -= (copied.events.len() - before) as u64;
            copied.events.truncate(before);
            // SAFETY: a ring returns only slots that were written as a whole, and only `push` does.
            #[allow(unsafe_code, reason = "the text of an event is its address and its length")]
            let of = |words| unsafe { RingEvent::of(words) };
            let mut events = copied.events.into_iter().filter_map(of).peekable();
            if copied.lost > 0 {
                let first = events.peek().map_or(u64::MAX, |event| event.ticks);
                complete_from = complete_from.max(first);
            }
            items.extend(events.map(Item::Event));
            lost += copied.lost;
            self.rings[nth] = copied.next;
        }
        let copied = notes::copy(self.notes);
        items.extend(copied.notes.into_iter().map(Item::Note));
        lost += copied.lost;
        self.notes = copied.next;
        let without_ring = attached::lost();
        lost += without_ring - self.lost;
        self.lost = without_ring;
        items.sort_by_key(Item::ticks);
        Collected { items, lost, complete_from }
    }
}

/// Writes the events of a process to a recording.
#[derive(Debug)]
pub(crate) struct EventWriter<W: Write> {
    writer: Writer<W>,
    /// By address and length.
    texts: HashMap<(usize, usize), StringId>,
    labels: Vec<Label>,
    label_ids: Vec<LabelId>,
    /// By stream pool.
    devices: HashMap<u32, u16>,
    /// The changes of the names of streams that were written.
    name_changes: u64,
}

impl<W: Write> EventWriter<W> {
    pub(crate) fn new(writer: Writer<W>) -> Self {
        Self {
            writer,
            texts: HashMap::new(),
            labels: Vec::new(),
            label_ids: Vec::new(),
            devices: HashMap::new(),
            name_changes: 0,
        }
    }

    /// Writes the names of streams, if there are new ones.
    pub(crate) fn write_names(&mut self, time_ns: u64) -> io::Result<()> {
        let Some(names) = notes::names_since(self.name_changes) else { return Ok(()) };
        self.name_changes = names.changes;
        for named in names.streams {
            let stream = number(named.stream.as_u64());
            let name = self.writer.intern(&named.name);
            let event = Event::Stream { change: StreamChange::Named, stream, name };
            let device = self.device_of(named.stream.as_u64());
            self.writer.write(&Record { time_ns, device, ..Record::new(event) })?;
        }
        Ok(())
    }

    /// Writes events. Returns their number.
    pub(crate) fn write(&mut self, collected: Collected, times: &Times) -> io::Result<u64> {
        self.writer.add_lost(collected.lost);
        let events = collected.items.len() as u64;
        for item in collected.items {
            match item {
                Item::Event(event) => self.write_event(&event, times)?,
                Item::Note(note) => self.write_note(note, times)?,
            }
        }
        Ok(events)
    }

    /// Writes a description of a heap.
    pub(crate) fn write_heap(&mut self, heap: &Heap, why: &str, time_ns: u64) -> io::Result<()> {
        let device = heap.device as u16;
        let why = self.writer.intern(why);
        let record = |event| Record { time_ns, device, ..Record::new(event) };
        let begin = Event::SnapshotBegin { why, reserved: heap.reserved };
        self.writer.write(&record(begin))?;
        for part in &heap.parts {
            let tag = self.tag(part.tag);
            let region = Region {
                address: part.address,
                bytes: part.bytes,
                state: part.state,
                stream: number(part.stream.as_u64()),
                tag,
            };
            self.writer.write(&record(Event::Region(region)))?;
        }
        self.writer.write(&record(Event::SnapshotEnd))
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    pub(crate) fn finish(self) -> io::Result<W> {
        self.writer.finish()
    }

    fn write_event(&mut self, event: &RingEvent, times: &Times) -> io::Result<()> {
        let RingEvent { a, b, c, stream, text, query, .. } = *event;
        let kind = event.head.kind;
        let tag = self.tag_of(event);
        let block = Block { address: a, bytes: b, generation: c, stream: number(stream), tag };
        let span = |change| Event::Span { change, address: a, bytes: b, stream: number(stream) };
        let spill = |direction| Event::Spill { direction, block };
        let event_of_kind = match kind {
            Kind::Allocate => Event::Allocate(block),
            Kind::Free => Event::Free(block),
            Kind::Retire => Event::Retire(block),
            Kind::Grow => Event::Grow(block),
            Kind::Describe => Event::Describe(block),
            Kind::SpillOut => spill(SpillDirection::Out),
            Kind::SpillIn => spill(SpillDirection::In),
            Kind::Ready => Event::Ready { address: a, bytes: b, stream: number(stream) },
            Kind::Reserve => span(SpanChange::Reserve),
            Kind::Release => span(SpanChange::Release),
            Kind::Map => span(SpanChange::Map),
            Kind::Unmap => span(SpanChange::Unmap),
            Kind::Move => span(SpanChange::Move { from: c }),
            Kind::Wait => {
                let awaited = number(a);
                Event::Wait { stream: number(stream), awaited, block: c, launch: b, work: text }
            }
            Kind::GraphLaunch => Event::GraphLaunch { stream: number(stream), graph: a, tag },
            Kind::LabelBegin => Event::LabelBegin,
            Kind::LabelEnd => Event::LabelEnd,
            Kind::HostWait => Event::HostWait { stream: number(stream), length_ns: a },
        };
        let label = self.label(event.head.label);
        let device = match kind {
            Kind::HostWait if stream == 0 => b as u16,
            _ => self.device_of(stream),
        };
        self.writer.write(&Record {
            time_ns: times.ns(event.ticks),
            thread: event.head.thread as u32,
            device,
            query,
            label,
            event: event_of_kind,
        })
    }

    fn write_note(&mut self, note: Note, times: &Times) -> io::Result<()> {
        let time_ns = times.ns(note.ticks);
        let By { thread, label, query } = note.by;
        let record = Record {
            time_ns,
            thread: thread as u32,
            query,
            label: self.label(label),
            ..Record::default()
        };
        let record = match note.what {
            What::Heap { why, heap } => return self.write_heap(&heap, why, time_ns),
            What::Refused(refused) => {
                let device = refused.stream.map_or(0, |stream| self.device_of(stream.as_u64()));
                Record { device, event: Event::Refused(self.refusal(&refused)), ..record }
            }
            What::BudgetPeak { budget, bytes, limit } => {
                let budget = self.tag(budget);
                Record { event: Event::BudgetPeak { budget, bytes, limit }, ..record }
            }
            What::Stream { change, stream } => {
                let device = self.device_of(stream.as_u64());
                let stream = number(stream.as_u64());
                let event = Event::Stream { change, stream, name: StringId::EMPTY };
                Record { device, event, ..record }
            }
            What::WaitLength { wait, length_ns, age_ns } => {
                let RecordedWait { stream, awaited, block, launch, work } = wait;
                let device = self.device_of(stream.as_u64());
                let stream = number(stream.as_u64());
                let awaited = number(awaited.as_u64());
                let event =
                    Event::WaitLength { stream, awaited, block, launch, work, length_ns, age_ns };
                Record { device, event, ..record }
            }
            What::DeviceLost { device, message } => {
                let message = self.writer.intern(&message);
                Record { device: device as u16, event: Event::DeviceLost { message }, ..record }
            }
        };
        self.writer.write(&record)
    }

    fn refusal(&mut self, refused: &Refused) -> Refusal {
        Refusal {
            bytes: refused.bytes,
            stream: refused.stream.map_or(StreamNumber(0), |stream| number(stream.as_u64())),
            tag: self.tag(refused.tag),
            limit: self.writer.intern(&refused.limit),
            limit_bytes: refused.limit_bytes,
            used: refused.used,
            free: refused.free,
            largest_free: refused.largest_free,
        }
    }

    fn label(&mut self, label: u16) -> LabelId {
        let Some(nth) = usize::from(label).checked_sub(1) else { return LabelId::default() };
        if nth >= self.labels.len() {
            self.labels = label::labels();
            for label in self.labels.iter().skip(self.label_ids.len()) {
                let name = self.writer.intern(label.name.name());
                let site = self.writer.intern(&label.site.to_string());
                self.label_ids.push(LabelId { name, site });
            }
        }
        self.label_ids.get(nth).copied().unwrap_or_default()
    }

    fn device_of(&mut self, stream: u64) -> u16 {
        let pool = (stream >> 40) as u32;
        *self.devices.entry(pool).or_insert_with(|| device_of(pool))
    }

    fn tag(&mut self, tag: AllocTag) -> StringId {
        self.text(tag.name())
    }

    fn tag_of(&mut self, event: &RingEvent) -> StringId {
        self.text(event.text())
    }

    fn text(&mut self, text: &'static str) -> StringId {
        if text.is_empty() {
            return StringId::EMPTY;
        }
        let key = (text.as_ptr().addr(), text.len());
        if let Some(&id) = self.texts.get(&key) {
            return id;
        }
        let id = self.writer.intern(text);
        self.texts.insert(key, id);
        id
    }
}

/// Returns the number that a stream has in recordings.
pub(crate) fn number(stream: u64) -> StreamNumber {
    // A stream id that was stored in a ring.
    StreamNumber::new((stream >> 40) as u32, (stream >> 28) as u32)
}

/// Returns the number that a stream has in recordings.
#[must_use]
pub fn stream_number(stream: StreamId) -> StreamNumber {
    StreamNumber::new(pool_of(stream), stream.slot() as u32)
}
