//! A snapshot as PyTorch's viewer opens it: a pickle with segments and a trace.

use std::io::{self, Write};
use std::iter;

use super::pickle::PickleWriter;
use super::segments::{BASE, Segment, Segments, kept, of_block};
use crate::analysis::layout::{Layout, layout};
use crate::analysis::peak::in_use;
use crate::model::{EventKind, Format, Model, NONE};

/// The device ordinals that are written: each has a trace of its own, and so do those below it.
const MAX_DEVICES: u32 = 256;

/// The places of frames that are a tag or a label of the program.
pub(crate) const TAG: &str = "tag";
pub(crate) const LABEL: &str = "label";

/// Writes the snapshot of a model.
///
/// # Errors
///
/// Those of `out`.
pub fn write(model: &Model, out: impl Write) -> io::Result<()> {
    let placed = (!model.source.has_addresses).then(|| layout(model));
    let segments = Segments::of(model, placed.as_ref());
    let device = model.source.device.filter(|device| *device < MAX_DEVICES).unwrap_or(0);
    let export = Export { model, placed, segments, device };
    let mut pickle = PickleWriter::new(out)?;
    pickle.dict(|pickle| {
        pickle.text("segments")?;
        export.segments(pickle)?;
        pickle.text("device_traces")?;
        pickle.list(0..=device, |pickle, of| {
            let events = if of == device { model.events.len() } else { 0 };
            pickle.list(0..events, |pickle, event| export.event(pickle, event))
        })
    })?;
    pickle.finish()
}

struct Export<'m> {
    model: &'m Model,
    placed: Option<Layout>,
    segments: Segments,
    device: u32,
}

impl Export<'_> {
    fn address(&self, block: usize) -> u64 {
        match &self.placed {
            Some(layout) => BASE.saturating_add(layout.positions[block]),
            None => self.model.blocks.address[block],
        }
    }

    fn stream(&self, index: u32) -> u64 {
        self.model.streams.get(index as usize).map_or(0, |stream| stream.id)
    }

    fn segments(&self, pickle: &mut PickleWriter<impl Write>) -> io::Result<()> {
        let last = self.model.events.len().checked_sub(1).map_or(NONE, |last| last as u32);
        let mut blocks: Vec<_> = in_use(self.model, last).collect();
        blocks.sort_unstable_by_key(|block| self.address(*block));
        let mut blocks = blocks.into_iter().peekable();
        pickle.list(&self.segments.at_end, |pickle, segment| {
            let mut held = Vec::new();
            while let Some(block) = blocks.next_if(|block| self.address(*block) < segment.end()) {
                if self.address(block) >= segment.address {
                    held.push(block);
                }
            }
            pickle.dict(|pickle| self.segment(pickle, segment, &held))
        })
    }

    fn segment(
        &self,
        pickle: &mut PickleWriter<impl Write>,
        segment: &Segment,
        held: &[usize],
    ) -> io::Result<()> {
        // Blocks that share bytes, as a flawed file may have them, are cut.
        let mut parts = Vec::new();
        let mut next = segment.address;
        for &block in held {
            let address = self.address(block).max(next);
            let end = self.address(block).saturating_add(self.model.blocks.bytes[block]);
            let end = end.min(segment.end()).max(address);
            parts.push(Part { address: next, bytes: address - next, block: None });
            parts.push(Part { address, bytes: end - address, block: Some(block) });
            next = end;
        }
        parts.push(Part { address: next, bytes: segment.end() - next, block: None });
        parts.retain(|part| part.block.is_some() || part.bytes > 0);
        let sum = |of: fn(&Self, usize) -> bool| -> u64 {
            let parts = parts.iter().filter(|part| part.block.is_some_and(|it| of(self, it)));
            parts.map(|part| part.bytes).sum()
        };
        let active = sum(|_, _| true);
        pickle.item("device", self.device.into())?;
        pickle.item("address", segment.address)?;
        pickle.item("total_size", segment.bytes)?;
        pickle.item("allocated_size", sum(|export, block| !export.is_retired(block)))?;
        pickle.item("active_size", active)?;
        pickle.item("requested_size", active)?;
        pickle.item("stream", self.stream(segment.stream))?;
        pickle.text_item("segment_type", "large")?;
        pickle.text("segment_pool_id")?;
        pickle.list([0, 0], PickleWriter::number)?;
        self.frames(pickle, None)?;
        pickle.text("blocks")?;
        pickle.list(&parts, |pickle, part| {
            let state = match part.block {
                Some(block) if self.is_retired(block) => "active_pending_free",
                Some(_) => "active_allocated",
                None => "inactive",
            };
            pickle.dict(|pickle| {
                pickle.item("address", part.address)?;
                pickle.item("size", part.bytes)?;
                pickle.item("requested_size", if part.block.is_some() { part.bytes } else { 0 })?;
                pickle.text_item("state", state)?;
                self.frames(pickle, part.block)
            })
        })
    }

    /// Returns whether a block that is in use at the end was freed.
    fn is_retired(&self, block: usize) -> bool {
        self.model.blocks.freed[block] != NONE
    }

    /// Writes the tag, the label and the call stack of a block as frames: the viewer shows them.
    fn frames(
        &self,
        pickle: &mut PickleWriter<impl Write>,
        block: Option<usize>,
    ) -> io::Result<()> {
        let blocks = &self.model.blocks;
        let names = block.map(|block| [blocks.tag[block], blocks.label[block], blocks.site[block]]);
        pickle.text("frames")?;
        let names = names.unwrap_or_default();
        let [tag, label, stack] = names.map(|name| self.model.names.get(name));
        // The tag of PyTorch's blocks is one of their frames.
        let is_frame = self.model.source.format == Format::PyTorch && stack.contains(tag);
        let tag = Frame { name: if is_frame { "" } else { tag }, place: TAG, line: 0 };
        let label = Frame { name: label, place: LABEL, line: 0 };
        let named = [tag, label].into_iter().filter(|frame| !frame.name.is_empty());
        pickle.shared_list(names, named.chain(stack.lines().map(Frame::parse)), |pickle, frame| {
            pickle.dict(|pickle| {
                pickle.text_item("name", frame.name)?;
                pickle.text_item("filename", frame.place)?;
                pickle.item("line", frame.line)
            })
        })
    }

    fn event(&self, pickle: &mut PickleWriter<impl Write>, event: usize) -> io::Result<()> {
        let subject = self.model.events.subject[event] as usize;
        let time = self.model.events.time[event];
        let [reserved, released] = match self.segments.are_mapped {
            true => ["segment_map", "segment_unmap"],
            false => ["segment_alloc", "segment_free"],
        };
        match self.model.events.kind[event] {
            EventKind::Allocate => {
                if self.segments.is_alone(subject) {
                    self.of_segment(pickle, reserved, of_block(self.model, subject), time)?;
                }
                self.of_block(pickle, "alloc", subject, time)
            }
            EventKind::Retire => self.of_block(pickle, "free_requested", subject, time),
            kind @ (EventKind::Free | EventKind::Ready) => {
                if kind == EventKind::Free {
                    self.of_block(pickle, "free_requested", subject, time)?;
                }
                self.of_block(pickle, "free_completed", subject, time)?;
                if self.segments.is_alone(subject) {
                    self.of_segment(pickle, released, of_block(self.model, subject), time)?;
                }
                Ok(())
            }
            // What a release has kept was not given back in the first place.
            EventKind::Reserve if self.segments.change() && !self.segments.is_kept(event) => {
                self.of_segment(pickle, reserved, self.span(subject), time)
            }
            EventKind::Release if self.segments.change() => {
                let span = self.span(subject);
                let mut next = span.address;
                let kept = kept(self.model, event);
                let kept = kept.map(|event| self.span(self.model.events.subject[event] as usize));
                let after = Segment { address: span.end(), bytes: 0, stream: NONE };
                for part in kept.chain(iter::once(after)) {
                    let bytes = part.address.saturating_sub(next);
                    if bytes > 0 {
                        let gap = Segment { address: next, bytes, ..span };
                        self.of_segment(pickle, released, gap, time)?;
                    }
                    next = next.max(part.end());
                }
                Ok(())
            }
            EventKind::Refuse => self.out_of_memory(pickle, subject, time),
            EventKind::Reserve | EventKind::Release | EventKind::Wait | EventKind::Mark => Ok(()),
        }
    }

    fn span(&self, index: usize) -> Segment {
        Segment::of(&self.model.spans[index])
    }

    fn of_block(
        &self,
        pickle: &mut PickleWriter<impl Write>,
        action: &'static str,
        block: usize,
        time: u64,
    ) -> io::Result<()> {
        let blocks = &self.model.blocks;
        pickle.dict(|pickle| {
            pickle.text_item("action", action)?;
            pickle.item("addr", self.address(block))?;
            pickle.item("size", blocks.bytes[block])?;
            pickle.item("stream", self.stream(blocks.stream[block]))?;
            pickle.item("time_us", time / 1000)?;
            self.frames(pickle, Some(block))
        })
    }

    fn of_segment(
        &self,
        pickle: &mut PickleWriter<impl Write>,
        action: &'static str,
        segment: Segment,
        time: u64,
    ) -> io::Result<()> {
        pickle.dict(|pickle| {
            pickle.text_item("action", action)?;
            pickle.item("addr", segment.address)?;
            pickle.item("size", segment.bytes)?;
            pickle.item("stream", self.stream(segment.stream))?;
            pickle.item("time_us", time / 1000)?;
            self.frames(pickle, None)
        })
    }

    fn out_of_memory(
        &self,
        pickle: &mut PickleWriter<impl Write>,
        refusal: usize,
        time: u64,
    ) -> io::Result<()> {
        let refusal = &self.model.refusals[refusal];
        pickle.dict(|pickle| {
            pickle.text_item("action", "oom")?;
            pickle.item("size", refusal.bytes)?;
            pickle.item("stream", self.stream(refusal.stream))?;
            pickle.item("device_free", refusal.device_free.unwrap_or(0))?;
            pickle.item("time_us", time / 1000)?;
            let tag = self.model.names.get(refusal.tag);
            let refused_by = format!("refused by: {}", refusal.refused_by);
            let frames = [(tag, TAG), (&refused_by, LABEL)];
            pickle.text("frames")?;
            pickle.list(frames, |pickle, (name, place)| {
                pickle.dict(|pickle| {
                    pickle.text_item("name", name)?;
                    pickle.text_item("filename", place)?;
                    pickle.item("line", 0)
                })
            })
        })
    }
}

/// A part of a segment: a block, or the free memory between two.
struct Part {
    address: u64,
    bytes: u64,
    block: Option<usize>,
}

/// A frame of a call stack.
#[derive(Debug, PartialEq, Eq)]
struct Frame<'t> {
    name: &'t str,
    place: &'t str,
    line: u64,
}

impl<'t> Frame<'t> {
    /// Reads a line of a call stack: `FILE:LINE NAME`, as one of PyTorch is read, a name, or
    /// `FILE:LINE:COLUMN`, as one of ours is.
    fn parse(text: &'t str) -> Self {
        let (place, name) = text.split_once(' ').unwrap_or((text, ""));
        let mut parts = place.rsplit(':');
        let last = parts.next().and_then(|it| it.parse().ok());
        let before = parts.next().and_then(|it| it.parse().ok());
        let numbers = usize::from(last.is_some()) + usize::from(last.and(before).is_some());
        let file = place.rsplitn(numbers + 1, ':').last();
        match (last.and(before).or(last), file) {
            (Some(line), Some(file)) if file != place => Self { name, place: file, line },
            _ => Self { name: text, place: "??", line: 0 },
        }
    }
}
