//! Builds a model from events in the order of a file: pairs allocations with frees.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::error::ReportError;
use crate::model::{BudgetPeak, EventKind, Mark, Model, NONE, Refusal, Source, Span, Stream, Wait};

/// The number of allocations after which addresses are no longer checked for being ids.
const CHECKED: usize = 50_000;

/// Builds a [`Model`]. Times that decrease are raised to the one before: threads log slightly out
/// of order.
#[derive(Debug)]
pub struct Builder {
    model: Model,
    streams: FxHashMap<u64, u32>,
    /// The live and retired blocks by their key.
    live: FxHashMap<u64, u32>,
    /// The reserved spans by their address.
    spans: BTreeMap<u64, u32>,
    overlap: OverlapCheck,
}

/// An allocation, as a file has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocation<'a> {
    /// The key that its free has, too: the address, or a generation.
    pub key: u64,
    /// The first byte.
    pub address: u64,
    /// The size.
    pub bytes: u64,
    /// The number of the stream.
    pub stream: u64,
    /// The tag.
    pub tag: &'a str,
    /// The query; 0 for none.
    pub query: u64,
    /// The label that the thread was in; empty if there is none.
    pub label: &'a str,
    /// The call site or stack; empty if there is none.
    pub site: &'a str,
}

/// A range that is reserved from the driver, as a file has it.
#[derive(Clone, Copy, Debug)]
pub struct Reserved {
    /// The first byte.
    pub address: u64,
    /// The size.
    pub bytes: u64,
    /// The number of the stream that it belongs to.
    pub stream: Option<u64>,
}

impl Builder {
    /// Makes a builder for a file.
    #[must_use]
    pub fn new(source: Source) -> Self {
        Self {
            model: Model { source, ..Model::default() },
            streams: FxHashMap::default(),
            live: FxHashMap::default(),
            spans: BTreeMap::new(),
            overlap: OverlapCheck::default(),
        }
    }

    /// Returns the model so far, for the tables that need no pairing.
    pub fn model(&mut self) -> &mut Model {
        &mut self.model
    }

    /// Returns the index of a stream, which is added if it is new.
    pub fn stream(&mut self, id: u64) -> u32 {
        let streams = &mut self.model.streams;
        *self.streams.entry(id).or_insert_with(|| {
            streams.push(Stream { id, name: String::new() });
            streams.len() as u32 - 1
        })
    }

    /// Sets the name of a stream.
    pub fn name_stream(&mut self, id: u64, name: &str) {
        let index = self.stream(id);
        name.clone_into(&mut self.model.streams[index as usize].name);
    }

    /// Returns the live or retired block with this key; [`NONE`] if there is none.
    #[must_use]
    pub fn block(&self, key: u64) -> u32 {
        self.live.get(&key).copied().unwrap_or(NONE)
    }

    /// Adds an allocation. A block with the same key that was not freed ends here.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn allocate(&mut self, time: u64, block: &Allocation<'_>) -> Result<u32, ReportError> {
        if let Some(old) = self.live.remove(&block.key) {
            self.model.flaws.lost_frees += 1;
            self.end(time, old)?;
        }
        let event = self.push(time, EventKind::Allocate, self.model.blocks.len() as u32)?;
        self.overlap.allocate(block.address, block.bytes);
        let index = self.add_block(block, event);
        self.live.insert(block.key, index);
        Ok(index)
    }

    /// Adds a block that was allocated before the first event.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn allocated_before(&mut self, block: &Allocation<'_>) -> Result<u32, ReportError> {
        self.check_room(self.model.blocks.len())?;
        let index = self.add_block(block, NONE);
        self.live.insert(block.key, index);
        Ok(index)
    }

    /// Adds a free. A block that is not live was allocated before the first event, if `unknown` has
    /// a size; otherwise the free is counted as a flaw.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn free(&mut self, time: u64, unknown: &Allocation<'_>) -> Result<(), ReportError> {
        if let Some(block) = self.take(unknown)? {
            self.end(time, block)?;
        }
        Ok(())
    }

    /// Adds a free of a block that is still used: its memory is [ready](Self::ready) later.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn retire(&mut self, time: u64, unknown: &Allocation<'_>) -> Result<(), ReportError> {
        let Some(block) = self.take(unknown)? else { return Ok(()) };
        self.live.insert(unknown.key, block);
        let event = self.push(time, EventKind::Retire, block)?;
        self.model.blocks.freed[block as usize] = event;
        Ok(())
    }

    /// Adds the time from which the memory of a freed block can be used again.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn ready(&mut self, time: u64, key: u64) -> Result<(), ReportError> {
        match self.live.remove(&key) {
            Some(block) => self.end(time, block),
            None => Ok(()),
        }
    }

    /// Makes a block larger in place: its row ends, and a new one begins at the same address.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn grow(&mut self, time: u64, grown: &Allocation<'_>) -> Result<(), ReportError> {
        if let Some(old) = self.live.remove(&grown.key) {
            self.end(time, old)?;
        }
        self.allocate(time, grown).map(|_| ())
    }

    /// Adds a span that was reserved from the driver. Spans that share a byte with it end here:
    /// their release is missing.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn reserve(&mut self, time: u64, range: Reserved) -> Result<(), ReportError> {
        if range.bytes == 0 {
            return Ok(());
        }
        for index in self.overlapping(range) {
            self.end_span(time, index)?;
        }
        let event = self.push(time, EventKind::Reserve, self.model.spans.len() as u32)?;
        self.add_span(range, event);
        Ok(())
    }

    /// Adds a span that was reserved before the first event.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn reserved_before(&mut self, range: Reserved) -> Result<(), ReportError> {
        self.check_room(self.model.spans.len())?;
        self.add_span(range, NONE);
        Ok(())
    }

    /// Adds a span that is reserved at the end: the parts of it that no event has reserved were
    /// there before the first event.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn held(&mut self, range: Reserved) -> Result<(), ReportError> {
        let end = range.address.saturating_add(range.bytes);
        let mut next = range.address;
        for index in self.overlapping(range) {
            let span = self.model.spans[index as usize];
            if span.address > next {
                self.reserved_before(Reserved {
                    address: next,
                    bytes: span.address - next,
                    ..range
                })?;
            }
            next = next.max(span.address.saturating_add(span.bytes));
        }
        if end > next {
            self.reserved_before(Reserved { address: next, bytes: end - next, ..range })?;
        }
        Ok(())
    }

    /// Adds the return of a range to the driver. Parts of it that were not reserved so far were
    /// reserved before the first event; what spans have outside of it stays reserved.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn release(&mut self, time: u64, range: Reserved) -> Result<(), ReportError> {
        self.held(range)?;
        let end = range.address.saturating_add(range.bytes);
        for index in self.overlapping(range) {
            let span = self.model.spans[index as usize];
            self.end_span(time, index)?;
            let stream = self.model.streams.get(span.stream as usize).map(|stream| stream.id);
            let span_end = span.address.saturating_add(span.bytes);
            for part in [[span.address, range.address], [end, span_end]] {
                if let Some(bytes) = part[1].checked_sub(part[0]).filter(|bytes| *bytes > 0) {
                    self.reserve(time, Reserved { address: part[0], bytes, stream })?;
                }
            }
        }
        Ok(())
    }

    /// Ends all blocks and spans: the process that had them has ended.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn end_process(&mut self, time: u64) -> Result<(), ReportError> {
        let mut blocks: Vec<_> = self.live.drain().map(|(_, block)| block).collect();
        blocks.sort_unstable();
        blocks.into_iter().try_for_each(|block| self.end(time, block))?;
        let spans: Vec<_> = self.spans.values().copied().collect();
        spans.into_iter().try_for_each(|span| self.end_span(time, span))
    }

    fn end_span(&mut self, time: u64, index: u32) -> Result<(), ReportError> {
        self.spans.remove(&self.model.spans[index as usize].address);
        let event = self.push(time, EventKind::Release, index)?;
        self.model.spans[index as usize].released = event;
        Ok(())
    }

    /// Returns the reserved spans that share a byte with a range, by their addresses.
    fn overlapping(&self, range: Reserved) -> Vec<u32> {
        let end = range.address.saturating_add(range.bytes);
        let before = self.spans.range(..end).rev();
        let overlaps = |index: &u32| {
            let span = self.model.spans[*index as usize];
            span.address.saturating_add(span.bytes) > range.address
        };
        let found = before.map(|(_, index)| *index).take_while(overlaps);
        let mut found: Vec<_> = found.collect();
        found.reverse();
        found
    }

    /// Adds a wait.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn wait(&mut self, time: u64, wait: Wait) -> Result<(), ReportError> {
        self.push(time, EventKind::Wait, self.model.waits.len() as u32)?;
        self.model.waits.push(wait);
        Ok(())
    }

    /// Adds an allocation that failed.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn refuse(&mut self, time: u64, refusal: Refusal) -> Result<(), ReportError> {
        self.push(time, EventKind::Refuse, self.model.refusals.len() as u32)?;
        self.model.refusals.push(refusal);
        Ok(())
    }

    /// Adds another event.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn mark(&mut self, time: u64, text: &str, stream: u32) -> Result<(), ReportError> {
        self.push(time, EventKind::Mark, self.model.marks.len() as u32)?;
        let text = self.model.names.intern(text);
        self.model.marks.push(Mark { text, stream });
        Ok(())
    }

    /// Adds a new high mark of a budget.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn budget_peak(
        &mut self,
        time: u64,
        name: &str,
        bytes: u64,
        limit: u64,
    ) -> Result<(), ReportError> {
        let event = self.model.events.len() as u32;
        self.mark(time, &format!("budget {name}: {bytes} of {limit} bytes"), NONE)?;
        let budget = self.model.names.intern(name);
        self.model.budget_peaks.push(BudgetPeak { event, budget, bytes, limit });
        Ok(())
    }

    /// Returns the model.
    #[must_use]
    pub fn finish(mut self) -> Model {
        self.model.source.has_addresses &= !self.overlap.found;
        self.model
    }

    fn add_span(&mut self, range: Reserved, event: u32) {
        let Reserved { address, bytes, stream } = range;
        self.spans.insert(address, self.model.spans.len() as u32);
        let stream = stream.map_or(NONE, |id| self.stream(id));
        self.model.spans.push(Span { address, bytes, stream, reserved: event, released: NONE });
    }

    fn add_block(&mut self, block: &Allocation<'_>, event: u32) -> u32 {
        let stream = self.stream(block.stream);
        let model = &mut self.model;
        let tag = model.names.intern(block.tag);
        let label = model.names.intern(block.label);
        let site = model.names.intern(block.site);
        let blocks = &mut model.blocks;
        blocks.address.push(block.address);
        blocks.bytes.push(block.bytes);
        blocks.tag.push(tag);
        blocks.stream.push(stream);
        blocks.query.push(block.query);
        blocks.label.push(label);
        blocks.site.push(site);
        blocks.allocated.push(event);
        blocks.freed.push(NONE);
        blocks.ready.push(NONE);
        blocks.len() as u32 - 1
    }

    /// Removes a block from the live ones; adds it first if it has a size and is not one of them.
    fn take(&mut self, block: &Allocation<'_>) -> Result<Option<u32>, ReportError> {
        if let Some(known) = self.live.remove(&block.key) {
            return Ok(Some(known));
        }
        if block.bytes == 0 {
            self.model.flaws.unknown_frees += 1;
            return Ok(None);
        }
        let added = self.allocated_before(block)?;
        self.live.remove(&block.key);
        Ok(Some(added))
    }

    /// Ends a block: with its free, or, if it is retired, with the time from which its memory can
    /// be used again.
    fn end(&mut self, time: u64, block: u32) -> Result<(), ReportError> {
        let at = block as usize;
        let is_retired = self.model.blocks.freed[at] != NONE;
        let kind = if is_retired { EventKind::Ready } else { EventKind::Free };
        let event = self.push(time, kind, block)?;
        let blocks = &mut self.model.blocks;
        if !is_retired {
            blocks.freed[at] = event;
        }
        blocks.ready[at] = event;
        self.overlap.free(blocks.address[at]);
        Ok(())
    }

    fn push(&mut self, time: u64, kind: EventKind, subject: u32) -> Result<u32, ReportError> {
        self.check_room(self.model.events.len())?;
        let events = &mut self.model.events;
        let time = events.time.last().map_or(time, |last| time.max(*last));
        events.time.push(time);
        events.kind.push(kind);
        events.subject.push(subject);
        Ok(events.len() as u32 - 1)
    }

    fn check_room(&self, rows: usize) -> Result<(), ReportError> {
        if rows < NONE as usize {
            return Ok(());
        }
        Err(ReportError::TooManyEvents { file: self.model.source.name.clone() })
    }
}

/// Finds live blocks that share a byte: then the addresses of the file are ids.
#[derive(Debug, Default)]
struct OverlapCheck {
    checked: usize,
    live: BTreeMap<u64, u64>,
    found: bool,
}

impl OverlapCheck {
    fn allocate(&mut self, address: u64, bytes: u64) {
        if self.found || self.checked >= CHECKED {
            return;
        }
        self.checked += 1;
        let end = address.saturating_add(bytes);
        let before = self.live.range(..end).next_back();
        self.found = before.is_some_and(|(_, before)| *before > address);
        self.live.insert(address, end);
        if self.found || self.checked == CHECKED {
            self.live.clear();
        }
    }

    fn free(&mut self, address: u64) {
        self.live.remove(&address);
    }
}
