//! A snapshot as PyTorch's viewer opens it: a pickle with segments and a trace.

use std::io::{self, Write};

use super::pickle::PickleWriter;
use crate::analysis::layout::{Layout, layout, segments};
use crate::analysis::peak::in_use;
use crate::model::{EventKind, Model, NONE};

/// The address of the first byte for a file that has none.
const BASE: u64 = 0x7F00_0000_0000;

/// Writes the snapshot of a model.
///
/// # Errors
///
/// Those of `out`.
pub fn write(model: &Model, out: impl Write) -> io::Result<()> {
    let placed = (!model.source.has_addresses).then(|| layout(model));
    let export = Export { model, placed };
    let mut pickle = PickleWriter::new(out)?;
    pickle.dict(|pickle| {
        pickle.text("segments")?;
        pickle.list(|pickle| export.segments(pickle))?;
        pickle.text("device_traces")?;
        pickle.list(|pickle| pickle.list(|pickle| export.trace(pickle)))
    })?;
    pickle.finish()
}

struct Export<'m> {
    model: &'m Model,
    placed: Option<Layout>,
}

/// A segment at the end of the file.
struct Segment {
    address: u64,
    bytes: u64,
    stream: u64,
}

impl Export<'_> {
    fn address(&self, block: usize) -> u64 {
        match &self.placed {
            Some(layout) => BASE + layout.positions[block],
            None => self.model.blocks.address[block],
        }
    }

    fn stream(&self, index: u32) -> u64 {
        self.model.streams.get(index as usize).map_or(0, |stream| stream.id)
    }

    /// Returns what is reserved at the end: the spans, or what blocks have covered.
    fn ranges(&self) -> Vec<Segment> {
        if let Some(layout) = &self.placed {
            return vec![Segment { address: BASE, bytes: layout.bytes, stream: 0 }];
        }
        let model = self.model;
        let held = model.spans.iter().filter(|span| span.released == NONE);
        let mut ranges: Vec<_> = held
            .map(|span| Segment {
                address: span.address,
                bytes: span.bytes,
                stream: self.stream(span.stream),
            })
            .collect();
        if model.spans.is_empty() {
            let covered = segments(model).into_iter();
            ranges = covered
                .map(|it| Segment { address: it.address, bytes: it.bytes, stream: 0 })
                .collect();
        }
        ranges.sort_by_key(|segment| segment.address);
        ranges
    }

    fn segments(&self, pickle: &mut PickleWriter<impl Write>) -> io::Result<()> {
        let last = self.model.events.len().checked_sub(1).map_or(NONE, |last| last as u32);
        let mut blocks: Vec<_> = in_use(self.model, last).collect();
        blocks.sort_unstable_by_key(|block| self.address(*block));
        let mut blocks = blocks.into_iter().peekable();
        for segment in self.ranges() {
            let end = segment.address + segment.bytes;
            let mut held = Vec::new();
            while let Some(block) = blocks.next_if(|block| self.address(*block) < end) {
                if self.address(block) >= segment.address {
                    held.push(block);
                }
            }
            pickle.dict(|pickle| self.segment(pickle, &segment, &held))?;
        }
        Ok(())
    }

    fn segment(
        &self,
        pickle: &mut PickleWriter<impl Write>,
        segment: &Segment,
        held: &[usize],
    ) -> io::Result<()> {
        let size = |block: &usize| self.model.blocks.bytes[*block];
        let allocated: u64 = held.iter().map(size).sum();
        pickle.item("device", u64::from(self.model.source.device.unwrap_or(0)))?;
        pickle.item("address", segment.address)?;
        pickle.item("total_size", segment.bytes)?;
        pickle.item("allocated_size", allocated)?;
        pickle.item("active_size", allocated)?;
        pickle.item("requested_size", allocated)?;
        pickle.item("stream", segment.stream)?;
        pickle.text_item("segment_type", "large")?;
        pickle.text("frames")?;
        pickle.list(|_| Ok(()))?;
        pickle.text("blocks")?;
        pickle.list(|pickle| {
            let mut next = segment.address;
            for block in held {
                let address = self.address(*block);
                gap(pickle, next, address)?;
                // Blocks that share bytes, as a flawed file may have them, are cut.
                let end = address.saturating_add(size(block));
                let end = end.min(segment.address + segment.bytes).max(next);
                let start = address.max(next);
                next = end;
                pickle.dict(|pickle| {
                    pickle.item("address", start)?;
                    pickle.item("size", end - start)?;
                    pickle.item("requested_size", end - start)?;
                    pickle.text_item("state", "active_allocated")?;
                    self.frames(pickle, *block)
                })?;
            }
            gap(pickle, next, segment.address + segment.bytes)
        })
    }

    /// Writes the tag, the label and the call site as frames: its viewer shows them.
    fn frames(&self, pickle: &mut PickleWriter<impl Write>, block: usize) -> io::Result<()> {
        let blocks = &self.model.blocks;
        let name = |id| self.model.names.get(id);
        pickle.text("frames")?;
        pickle.list(|pickle| {
            let texts =
                [name(blocks.tag[block]), name(blocks.label[block]), name(blocks.site[block])];
            for text in texts.iter().flat_map(|text| text.lines()) {
                pickle.dict(|pickle| {
                    pickle.text_item("name", text)?;
                    pickle.text_item("filename", "")?;
                    pickle.item("line", 0)
                })?;
            }
            Ok(())
        })
    }

    fn trace(&self, pickle: &mut PickleWriter<impl Write>) -> io::Result<()> {
        let model = self.model;
        for event in 0..model.events.len() {
            let subject = model.events.subject[event];
            let time = model.events.time[event];
            match model.events.kind[event] {
                EventKind::Allocate => self.of_block(pickle, "alloc", subject, time)?,
                EventKind::Free => {
                    self.of_block(pickle, "free_requested", subject, time)?;
                    self.of_block(pickle, "free_completed", subject, time)?;
                }
                EventKind::Retire => self.of_block(pickle, "free_requested", subject, time)?,
                EventKind::Ready => self.of_block(pickle, "free_completed", subject, time)?,
                EventKind::Reserve | EventKind::Release => {
                    let span = &model.spans[subject as usize];
                    let is_new = model.events.kind[event] == EventKind::Reserve;
                    let action = if is_new { "segment_alloc" } else { "segment_free" };
                    let of = Entry {
                        action,
                        address: span.address,
                        bytes: span.bytes,
                        stream: span.stream,
                    };
                    self.entry(pickle, of, time, None)?;
                }
                EventKind::Refuse => {
                    let refusal = &model.refusals[subject as usize];
                    let of = Entry {
                        action: "oom",
                        address: 0,
                        bytes: refusal.bytes,
                        stream: refusal.stream,
                    };
                    self.entry(pickle, of, time, None)?;
                }
                EventKind::Wait | EventKind::Mark => {}
            }
        }
        Ok(())
    }

    fn of_block(
        &self,
        pickle: &mut PickleWriter<impl Write>,
        action: &'static str,
        block: u32,
        time: u64,
    ) -> io::Result<()> {
        let blocks = &self.model.blocks;
        let at = block as usize;
        let of = Entry {
            action,
            address: self.address(at),
            bytes: blocks.bytes[at],
            stream: blocks.stream[at],
        };
        self.entry(pickle, of, time, Some(at))
    }

    fn entry(
        &self,
        pickle: &mut PickleWriter<impl Write>,
        of: Entry,
        time: u64,
        block: Option<usize>,
    ) -> io::Result<()> {
        pickle.dict(|pickle| {
            pickle.text_item("action", of.action)?;
            pickle.item("addr", of.address)?;
            pickle.item("size", of.bytes)?;
            pickle.item("stream", self.stream(of.stream))?;
            pickle.item("time_us", time / 1000)?;
            if of.action == "oom" {
                pickle.item("device_free", 0)?;
            }
            match block.filter(|_| of.action == "alloc") {
                Some(block) => self.frames(pickle, block),
                None => {
                    pickle.text("frames")?;
                    pickle.list(|_| Ok(()))
                }
            }
        })
    }
}

/// An entry of the trace, without its time and frames.
struct Entry {
    action: &'static str,
    address: u64,
    bytes: u64,
    stream: u32,
}

/// Writes the free memory between two blocks, if there is any.
fn gap(pickle: &mut PickleWriter<impl Write>, start: u64, end: u64) -> io::Result<()> {
    let Some(bytes) = end.checked_sub(start).filter(|bytes| *bytes > 0) else { return Ok(()) };
    pickle.dict(|pickle| {
        pickle.item("address", start)?;
        pickle.item("size", bytes)?;
        pickle.item("requested_size", 0)?;
        pickle.text_item("state", "inactive")?;
        pickle.text("frames")?;
        pickle.list(|_| Ok(()))
    })
}
