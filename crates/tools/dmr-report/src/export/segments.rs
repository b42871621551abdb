//! The segments of a snapshot, which PyTorch's viewer follows backwards from the end: at each event
//! each block in use is within one.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use crate::analysis::layout::{Layout, segments};
use crate::analysis::peak::in_use;
use crate::model::{EventKind, Model, NONE, Span};

/// The address of the first byte for a file that has none.
pub(super) const BASE: u64 = 0x7F00_0000_0000;

/// A range that is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// The index of the stream; [`NONE`] if it belongs to none.
    pub(super) stream: u32,
}

impl Segment {
    pub(super) fn of(span: &Span) -> Self {
        Self { address: span.address, bytes: span.bytes, stream: span.stream }
    }

    pub(super) const fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }

    const fn contains(&self, other: &Self) -> bool {
        self.address <= other.address && other.end() <= self.end()
    }
}

/// The segments at the end, and how they change.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// The segments at the end, in the order of their addresses.
    pub(super) at_end: Vec<Segment>,
    /// `true` where segments join those beside them and are split: PyTorch's expandable ones.
    /// `false` where each is reserved and released as a whole.
    pub(super) are_mapped: bool,
    /// For each block whether it is outside of the spans, and a segment by itself; empty if the
    /// segments do not change.
    pub(super) is_alone: Vec<bool>,
    /// The events that reserve what a release has kept.
    kept: FxHashSet<u32>,
}

impl Segments {
    /// Returns the segments of a model: its spans, or, without those, what blocks have covered.
    pub(super) fn of(model: &Model, placed: Option<&Layout>) -> Self {
        if let Some(layout) = placed {
            let all = Segment { address: BASE, bytes: layout.bytes, stream: NONE };
            return Self { at_end: vec![all], ..Self::default() };
        }
        if model.spans.is_empty() {
            let covered = segments(model).into_iter();
            let covered =
                covered.map(|it| Segment { address: it.address, bytes: it.bytes, stream: NONE });
            return Self { at_end: covered.collect(), ..Self::default() };
        }
        let mut follow = Follow::new(model);
        (0..model.events.len()).for_each(|event| follow.event(event));
        let Follow { crosses, is_alone, kept, .. } = follow;
        let are_mapped = crosses || !kept.is_empty();
        let held = model.spans.iter().filter(|span| span.released == NONE);
        let mut at_end: Vec<_> = held.map(Segment::of).collect();
        let last = model.events.len().checked_sub(1).map_or(NONE, |last| last as u32);
        let alone = in_use(model, last).filter(|block| is_alone[*block]);
        at_end.extend(alone.map(|block| of_block(model, block)));
        at_end.sort_by_key(|segment| segment.address);
        if are_mapped {
            at_end = joined(&at_end);
        }
        Self { at_end, are_mapped, is_alone, kept }
    }

    /// Returns whether spans are reserved and released in the trace.
    pub(super) const fn change(&self) -> bool {
        !self.is_alone.is_empty()
    }

    /// Returns whether an event reserves what a release has kept.
    pub(super) fn is_kept(&self, event: usize) -> bool {
        self.kept.contains(&(event as u32))
    }

    /// Returns whether a block is a segment by itself.
    pub(super) fn is_alone(&self, block: usize) -> bool {
        self.is_alone.get(block).copied().unwrap_or(false)
    }
}

/// Returns the segment of a block that is outside of the spans.
pub(super) fn of_block(model: &Model, block: usize) -> Segment {
    let blocks = &model.blocks;
    Segment {
        address: blocks.address[block],
        bytes: blocks.bytes[block],
        stream: blocks.stream[block],
    }
}

/// Returns the events that reserve, at once with the release of a span, what was kept of it.
pub(super) fn kept(model: &Model, release: usize) -> impl Iterator<Item = usize> {
    let events = &model.events;
    let of = |event: usize| Segment::of(&model.spans[events.subject[event] as usize]);
    let released = of(release);
    (release + 1..events.len()).take_while(move |event| {
        events.kind[*event] == EventKind::Reserve
            && events.time[*event] == events.time[release]
            && released.contains(&of(*event))
    })
}

/// The spans at an event.
struct Follow<'m> {
    model: &'m Model,
    /// Their ends, by their addresses.
    spans: BTreeMap<u64, u64>,
    /// `true` once a block is in more than one.
    crosses: bool,
    is_alone: Vec<bool>,
    kept: FxHashSet<u32>,
}

impl<'m> Follow<'m> {
    fn new(model: &'m Model) -> Self {
        let before = model.spans.iter().filter(|span| span.reserved == NONE).map(Segment::of);
        let mut follow = Self {
            model,
            spans: before.map(|span| (span.address, span.end())).collect(),
            crosses: false,
            is_alone: vec![false; model.blocks.len()],
            kept: FxHashSet::default(),
        };
        let blocks = 0..model.blocks.len();
        let before = blocks.filter(|block| model.blocks.allocated[*block] == NONE);
        before.for_each(|block| follow.allocate(block));
        follow
    }

    fn event(&mut self, event: usize) {
        let subject = self.model.events.subject[event] as usize;
        match self.model.events.kind[event] {
            EventKind::Allocate => self.allocate(subject),
            EventKind::Reserve => {
                let span = Segment::of(&self.model.spans[subject]);
                self.spans.insert(span.address, span.end());
            }
            EventKind::Release => {
                self.spans.remove(&self.model.spans[subject].address);
                self.kept.extend(kept(self.model, event).map(|event| event as u32));
            }
            _ => {}
        }
    }

    fn allocate(&mut self, block: usize) {
        let address = self.model.blocks.address[block];
        let span = self.spans.range(..=address).next_back().map(|(_, end)| *end);
        match span.filter(|end| address < *end) {
            Some(end) => self.crosses |= self.model.blocks.end(block) > end,
            None => self.is_alone[block] = true,
        }
    }
}

/// Joins segments of one stream that touch.
fn joined(segments: &[Segment]) -> Vec<Segment> {
    let mut joined: Vec<Segment> = Vec::new();
    for segment in segments {
        match joined.last_mut() {
            Some(last) if last.end() == segment.address && last.stream == segment.stream => {
                last.bytes = last.bytes.saturating_add(segment.bytes);
            }
            _ => joined.push(*segment),
        }
    }
    joined
}
