//! The holes between blocks: fragmentation, and why they could not serve a request that failed.

use crate::analysis::layout::segments;
use crate::analysis::peak::{in_use, sum, totals_at};
use crate::model::{EventKind, Model, NONE, Refusal};

/// Free memory between blocks, within what is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The first byte.
    pub address: u64,
    /// The size.
    pub bytes: u64,
    /// The block before it; [`NONE`] if it begins where the reserved memory does.
    pub before: u32,
    /// The block after it; [`NONE`] if it ends where the reserved memory does.
    pub after: u32,
    /// The stream that its span belongs to; [`NONE`] if it belongs to none, or if that is not
    /// known.
    pub stream: u32,
}

/// The holes at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    /// The largest ones, at most the number that was asked for.
    pub largest: Vec<Hole>,
    /// The number of all holes.
    pub count: u64,
    /// The bytes of all holes.
    pub bytes: u64,
}

impl Holes {
    /// Returns the share of the free memory that is not in the largest hole, from 0 to 1.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        let largest = self.largest.first().map_or(0, |hole| hole.bytes);
        if self.bytes == 0 { 0.0 } else { 1.0 - largest as f64 / self.bytes as f64 }
    }
}

/// A range of reserved memory.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    end: u64,
    stream: u32,
}

/// Finds the holes after an event, and keeps the `kept` largest. A file that has no spans is taken
/// to have reserved what its blocks have ever covered.
#[must_use]
pub fn holes(model: &Model, event: u32, kept: usize) -> Holes {
    let mut holes = Holes::default();
    if !model.source.has_addresses {
        return holes;
    }
    let mut blocks: Vec<_> = in_use(model, event).collect();
    blocks.sort_unstable_by_key(|block| model.blocks.address[*block]);
    let mut found = Vec::new();
    let mut next = 0;
    for range in reserved(model, event) {
        let mut free = range.start;
        let mut before = NONE;
        while let Some(&block) = blocks.get(next) {
            let address = model.blocks.address[block];
            if address >= range.end {
                break;
            }
            next += 1;
            if address > free {
                found.push(hole(free, address, before, block as u32, range.stream));
            }
            free = free.max(model.blocks.end(block));
            before = block as u32;
        }
        if range.end > free {
            found.push(hole(free, range.end, before, NONE, range.stream));
        }
    }
    holes.count = found.len() as u64;
    holes.bytes = sum(found.iter().map(|hole| hole.bytes));
    found.sort_by_key(|hole| (std::cmp::Reverse(hole.bytes), hole.address));
    found.truncate(kept);
    holes.largest = found;
    holes
}

fn hole(start: u64, end: u64, before: u32, after: u32, stream: u32) -> Hole {
    Hole { address: start, bytes: end - start, before, after, stream }
}

/// Returns the reserved ranges after an event in the order of their addresses. Neighbours of one
/// stream are one range.
fn reserved(model: &Model, event: u32) -> Vec<Range> {
    let before = |at: u32| at != NONE && event != NONE && at <= event;
    let spans = model.spans.iter();
    let held = spans
        .filter(|span| (span.reserved == NONE || before(span.reserved)) && !before(span.released));
    let mut ranges: Vec<_> = held
        .map(|span| Range {
            start: span.address,
            end: span.address.saturating_add(span.bytes),
            stream: span.stream,
        })
        .collect();
    if model.spans.is_empty() {
        let covered = segments(model).into_iter();
        ranges = covered
            .map(|segment| Range {
                start: segment.address,
                end: segment.address.saturating_add(segment.bytes),
                stream: NONE,
            })
            .collect();
    }
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.end >= range.start && last.stream == range.stream => {
                last.end = last.end.max(range.end);
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// The reason why a hole could not serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoleReason {
    /// It is smaller than the request.
    TooSmall,
    /// It belongs to another stream.
    OtherStream,
    /// It is large enough: the file does not say why it was not used.
    Unknown,
}

/// The memory at the time of a request that failed.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The index of the refusal.
    pub refusal: usize,
    /// The event.
    pub event: u32,
    /// The bytes in use.
    pub in_use: u64,
    /// The bytes of these that were freed and still used.
    pub retired: u64,
    /// The bytes that were reserved; 0 if the file does not say.
    pub reserved: u64,
    /// The holes.
    pub holes: Holes,
}

impl Explanation {
    /// Returns the reason why a hole could not serve the request.
    #[must_use]
    pub fn reason(&self, request: &Refusal, hole: &Hole) -> HoleReason {
        if hole.bytes < request.bytes {
            HoleReason::TooSmall
        } else if hole.stream != NONE && hole.stream != request.stream {
            HoleReason::OtherStream
        } else {
            HoleReason::Unknown
        }
    }

    /// Returns the reason in a few sentences.
    #[must_use]
    pub fn sentence(&self, model: &Model) -> String {
        use dmr_core::size::human_bytes;
        let request = &model.refusals[self.refusal];
        let wanted = human_bytes(request.bytes);
        let mut text = match self.holes.count {
            0 => format!("{wanted} were requested, and no reserved memory was free."),
            count => {
                let largest = self.holes.largest.first().copied();
                let size = largest.map_or(0, |hole| hole.bytes);
                let noun = if count == 1 { "hole" } else { "holes" };
                let why = largest.map(|hole| self.reason(request, &hole));
                let because = match why {
                    Some(HoleReason::OtherStream) => "which belongs to another stream",
                    Some(HoleReason::Unknown) => "which was large enough",
                    _ => "which was too small",
                };
                format!(
                    "{wanted} were requested, and {} were free, but in {count} {noun}: the \
                     largest had {}, {because}.",
                    human_bytes(self.holes.bytes),
                    human_bytes(size)
                )
            }
        };
        if request.limit > 0 {
            let room = request.limit.saturating_sub(self.reserved.max(self.in_use));
            text += &format!(
                " More memory could not be reserved: the limit of {} left {}.",
                human_bytes(request.limit),
                human_bytes(room)
            );
        } else if let Some(free) = request.device_free {
            text += &format!(
                " More memory could not be reserved: the device had {} free.",
                human_bytes(free)
            );
        }
        if self.retired > 0 {
            let retired = human_bytes(self.retired);
            text += &format!(" {retired} were freed, but still used by a stream.");
        }
        text
    }
}

/// Explains the first `most` requests that failed.
#[must_use]
pub fn explanations(model: &Model, most: usize, kept: usize) -> Vec<Explanation> {
    let events = &model.events;
    let refused = (0..events.len()).filter(|event| events.kind[*event] == EventKind::Refuse);
    refused
        .take(most)
        .map(|event| {
            let totals = totals_at(model, event as u32);
            Explanation {
                refusal: events.subject[event] as usize,
                event: event as u32,
                in_use: totals.in_use(),
                retired: totals.retired,
                reserved: totals.reserved,
                holes: holes(model, event as u32, kept),
            }
        })
        .collect()
}
