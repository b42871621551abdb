//! A recording of the flight recorder.

use std::collections::BTreeMap;
use std::path::Path;

use dmr_recording::{
    Block, Event, Reader, Record, Refusal as Refused, RegionState, SpanChange, SpillDirection,
    StreamNumber, StringId,
};
use rustc_hash::FxHashMap;

use crate::builder::{Allocation, Builder, Reserved};
use crate::error::ReportError;
use crate::model::{HostWait, Model, NONE, Refusal, Source, Units, Wait, WaitLength};

/// The number of records that are sorted at once: threads write their records one after the other,
/// slightly out of order.
const WINDOW: usize = 1 << 16;

/// Marks the key of a block that has no generation: its address.
const ADDRESS: u64 = 1 << 63;

/// Reads a recording. A file that breaks off is read up to there.
pub(super) fn read(path: &Path, source: Source) -> Result<Model, ReportError> {
    let name = source.name.clone();
    let mut reader = Reader::open(path)
        .map_err(|source| ReportError::Recording { file: name.clone(), source })?;
    let mut adding = Adding {
        builder: Builder::new(Source { has_addresses: true, ..source }),
        device: None,
        retired: BTreeMap::new(),
        described: FxHashMap::default(),
        live: FxHashMap::default(),
        mapped: Mapped::default(),
        section_begin: 0,
    };
    let mut window: Vec<Record> = Vec::new();
    let mut broken_off = None;
    loop {
        let next = reader.next_record();
        let is_end = !matches!(next, Ok(Some(_)));
        match next {
            Ok(Some(record)) if matches!(record.event, Event::Start(_)) => {
                // Times are those of a section.
                adding.add_all(&reader, &mut window, 0)?;
                adding.begin_section()?;
            }
            Ok(Some(record)) => window.push(record),
            Ok(None) => {}
            Err(error) => broken_off = Some(error),
        }
        if window.len() == 2 * WINDOW || is_end {
            adding.add_all(&reader, &mut window, if is_end { 0 } else { WINDOW })?;
        }
        if is_end {
            break;
        }
    }
    let model = adding.builder.model();
    model.flaws.broken_off = broken_off.map(|error| error.to_string()).unwrap_or_default();
    model.source.device = adding.device.map(u32::from);
    let is_whole = model.spans.iter().all(|span| span.reserved != NONE);
    model.units = adding.mapped.units(is_whole);
    Ok(adding.builder.finish())
}

/// The state between records.
struct Adding {
    builder: Builder,
    device: Option<u16>,
    /// The keys of retired blocks by their address, which is all that the end of their use has.
    retired: BTreeMap<u64, u64>,
    /// Blocks that are named by others, before their allocation was recorded.
    described: FxHashMap<u64, u32>,
    /// The keys of live blocks by their address: a snapshot has no generations.
    live: FxHashMap<u64, u64>,
    mapped: Mapped,
    /// The time in the model at which the section of the file begins.
    section_begin: u64,
}

/// The sizes of the spans that were mapped: pages if they all have one, and its alignment.
#[derive(Default)]
struct Mapped {
    size: u64,
    is_other: bool,
}

impl Mapped {
    /// The bytes that the pool cuts its memory in.
    const GRAIN: u64 = 256;

    fn add(&mut self, address: u64, bytes: u64) {
        if self.size == 0 {
            self.size = bytes;
        }
        self.is_other |= bytes != self.size || bytes == 0 || !address.is_multiple_of(bytes);
    }

    /// Returns what is mapped and unmapped as a whole. A segment from before the first event is
    /// only known by its chunks.
    fn units(&self, is_whole: bool) -> Units {
        match self {
            Self { size: 1.., is_other: false } => {
                Units::Pages { size: self.size, grain: Self::GRAIN }
            }
            Self { size: 1.., .. } if is_whole => Units::Spans { grain: Self::GRAIN },
            _ => Units::Unknown,
        }
    }
}

impl Adding {
    /// Adds the records of a window in the order of their times, and keeps the last `kept`.
    fn add_all<R: std::io::Read>(
        &mut self,
        reader: &Reader<R>,
        window: &mut Vec<Record>,
        kept: usize,
    ) -> Result<(), ReportError> {
        window.sort_by_key(|record| record.time_ns);
        let ready = window.len().saturating_sub(kept);
        window.drain(..ready).try_for_each(|record| self.add(reader, &record))
    }

    /// Begins the records of another process, behind those of the one before.
    fn begin_section(&mut self) -> Result<(), ReportError> {
        let last = self.builder.model().events.time.last().copied();
        let Some(last) = last else { return Ok(()) };
        self.section_begin = last;
        self.retired.clear();
        self.described.clear();
        self.live.clear();
        self.builder.end_process(last)?;
        self.builder.mark(last, "another process begins", NONE)
    }

    fn add<R: std::io::Read>(
        &mut self,
        reader: &Reader<R>,
        record: &Record,
    ) -> Result<(), ReportError> {
        let time = self.section_begin.saturating_add(record.time_ns);
        let text = |id: StringId| reader.text(id);
        let as_allocation = |block: &Block| Allocation {
            key: if block.generation == 0 { block.address | ADDRESS } else { block.generation },
            address: block.address,
            bytes: block.bytes,
            stream: block.stream.0.into(),
            tag: text(block.tag),
            query: record.query,
            label: text(record.label.name),
            site: text(record.label.site),
        };
        match &record.event {
            Event::Allocate(block) => {
                self.device.get_or_insert(record.device);
                self.name(block.stream);
                let allocation = as_allocation(block);
                if let Some(key) = self.live.insert(block.address, allocation.key)
                    && key != allocation.key
                {
                    // It is in a snapshot, and its free is missing.
                    self.builder.free(time, &Allocation { key, ..Allocation::default() })?;
                }
                self.builder.allocate(time, &allocation).map(|_| ())
            }
            Event::Free(block) => {
                self.name(block.stream);
                let allocation = self.known(as_allocation(block));
                self.builder.free(time, &allocation)
            }
            Event::Retire(block) => {
                self.name(block.stream);
                let allocation = self.known(as_allocation(block));
                self.retired.insert(block.address, allocation.key);
                self.builder.retire(time, &allocation)
            }
            Event::Ready { address, bytes, .. } => {
                // Chunks of several blocks may be ready as one.
                let end = address.saturating_add((*bytes).max(1));
                while let Some((&of, &key)) = self.retired.range(*address..end).next() {
                    self.retired.remove(&of);
                    self.builder.ready(time, key)?;
                }
                Ok(())
            }
            Event::Grow(block) => self.builder.grow(time, &as_allocation(block)),
            Event::Span { change, address, bytes, stream } => {
                let span =
                    Reserved { address: *address, bytes: *bytes, stream: self.named(*stream) };
                self.span(time, *change, span)
            }
            Event::Wait { stream, awaited, block, launch, .. } => {
                let block = self.block(*block);
                let label = text(record.label.name);
                let reason = match (label, launch) {
                    (label, 0) => label.to_owned(),
                    ("", launch) => format!("launch {launch}"),
                    (label, launch) => format!("{label}, launch {launch}"),
                };
                self.name(*stream);
                self.name(*awaited);
                let wait = Wait {
                    waiting: self.builder.stream(stream.0.into()),
                    awaited: self.builder.stream(awaited.0.into()),
                    block,
                    reason: self.builder.model().names.intern(&reason),
                };
                self.builder.wait(time, wait)
            }
            Event::WaitLength { stream, awaited, block, length_ns, age_ns, .. } => {
                self.name(*stream);
                self.name(*awaited);
                let length = WaitLength {
                    waiting: self.builder.stream(stream.0.into()),
                    awaited: self.builder.stream(awaited.0.into()),
                    block: self.block(*block),
                    begin: time.saturating_sub(*age_ns),
                    length: *length_ns,
                };
                self.builder.model().wait_lengths.push(length);
                Ok(())
            }
            Event::HostWait { stream, length_ns } => {
                let stream = match *stream {
                    StreamNumber(0) => NONE,
                    stream => {
                        self.name(stream);
                        self.builder.stream(stream.0.into())
                    }
                };
                let begin = time.saturating_sub(*length_ns);
                let wait = HostWait { thread: record.thread, stream, begin, length: *length_ns };
                self.builder.model().host_waits.push(wait);
                Ok(())
            }
            Event::Describe(block) => {
                let allocation = as_allocation(block);
                if self.builder.block(allocation.key) == NONE {
                    let index = self.builder.allocated_before(&allocation)?;
                    self.described.insert(block.generation, index);
                }
                Ok(())
            }
            Event::Spill { direction, block } => {
                let way = match direction {
                    SpillDirection::Out => "spilled to host memory",
                    _ => "read back from host memory",
                };
                let text = format!("{way}: {}, {} bytes", text(block.tag), block.bytes);
                let stream = self.builder.stream(block.stream.0.into());
                self.builder.mark(time, &text, stream)
            }
            Event::Refused(refused) => {
                self.refused(time, text(refused.limit), text(refused.tag), refused)
            }
            Event::GraphLaunch { stream, graph, tag } => {
                let text = format!("launch of graph {graph} {}", text(*tag));
                let stream = self.builder.stream(stream.0.into());
                self.builder.mark(time, &text, stream)
            }
            Event::BudgetPeak { budget, bytes, limit } => {
                self.builder.budget_peak(time, text(*budget), *bytes, *limit)
            }
            Event::Stream { stream, name, .. } => {
                self.name(*stream);
                if !text(*name).is_empty() {
                    self.builder.name_stream(stream.0.into(), text(*name));
                }
                Ok(())
            }
            Event::LabelBegin => {
                let text = format!("begin {}", text(record.label.name));
                self.builder.mark(time, &text, NONE)
            }
            Event::DeviceLost { message } => {
                let text = format!("device lost: {}", text(*message));
                self.builder.mark(time, &text, NONE)
            }
            Event::Region(region) => {
                let stream = self.named(region.stream);
                let span = Reserved { address: region.address, bytes: region.bytes, stream };
                self.builder.held(span)?;
                let is_known = self.live.contains_key(&region.address)
                    || self.retired.contains_key(&region.address);
                if is_known || region.state == RegionState::Free {
                    return Ok(());
                }
                let block = Allocation {
                    key: region.address | ADDRESS,
                    address: region.address,
                    bytes: region.bytes,
                    stream: region.stream.0.into(),
                    tag: text(region.tag),
                    ..Allocation::default()
                };
                match region.state {
                    RegionState::Pending => self.retired.insert(region.address, block.key),
                    _ => self.live.insert(region.address, block.key),
                };
                self.builder.allocated_before(&block).map(|_| ())
            }
            Event::Summary(summary) => {
                self.builder.model().flaws.lost_events += summary.lost;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn span(&mut self, time: u64, change: SpanChange, span: Reserved) -> Result<(), ReportError> {
        if span.address != 0 {
            self.mapped.add(span.address, span.bytes);
        }
        match change {
            // Bytes without an address yet, or any more: they are counted where they are mapped.
            SpanChange::Reserve | SpanChange::Release if span.address == 0 => Ok(()),
            SpanChange::Reserve | SpanChange::Map => self.builder.reserve(time, span),
            SpanChange::Release | SpanChange::Unmap => self.builder.release(time, span),
            SpanChange::Move { from } => {
                self.builder.release(time, Reserved { address: from, ..span })?;
                self.builder.reserve(time, span)
            }
            _ => Ok(()),
        }
    }

    fn refused(
        &mut self,
        time: u64,
        limit: &str,
        tag: &str,
        refused: &Refused,
    ) -> Result<(), ReportError> {
        self.name(refused.stream);
        let stream = self.builder.stream(refused.stream.0.into());
        let tag = self.builder.model().names.intern(tag);
        let refusal = Refusal {
            bytes: refused.bytes,
            stream,
            tag,
            refused_by: limit.to_owned(),
            limit: refused.limit_bytes,
            device_free: None,
        };
        self.builder.refuse(time, refusal)
    }

    /// Removes a block from the live ones, and returns it with the key under which it is known.
    fn known<'a>(&mut self, mut block: Allocation<'a>) -> Allocation<'a> {
        let of_address = self.live.remove(&block.address);
        if self.builder.block(block.key) == NONE
            && let Some(key) = of_address
        {
            block.key = key;
        }
        block
    }

    /// Returns the block that another record names by its generation.
    fn block(&self, generation: u64) -> u32 {
        match self.builder.block(generation) {
            NONE => self.described.get(&generation).copied().unwrap_or(NONE),
            block => block,
        }
    }

    /// Names a stream by its slot, unless it has a name.
    fn name(&mut self, stream: StreamNumber) {
        let id = stream.0.into();
        let index = self.builder.stream(id) as usize;
        if self.builder.model().streams[index].name.is_empty() {
            let name = match stream {
                StreamNumber(0) => "work of no stream here".to_owned(),
                stream => format!("stream {}", stream.slot()),
            };
            self.builder.name_stream(id, &name);
        }
    }

    fn named(&mut self, stream: StreamNumber) -> Option<u64> {
        self.name(stream);
        Some(stream.0.into())
    }
}
