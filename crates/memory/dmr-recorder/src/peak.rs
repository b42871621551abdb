//! The peak: when the most bytes were live in the time that the rings cover, and which tags held
//! them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use dmr_core::AllocTag;

use crate::heap::{Heap, HeapState};
use crate::notes::{device_of, pool_of};
use crate::raw::{Kind, RingEvent};
use crate::recorder;
use crate::write::{Collected, Item};

/// The live bytes of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagBytes {
    /// The tag.
    pub tag: AllocTag,
    /// Bytes, rounded up to 256 a block.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// The moment at which the most bytes were live.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peak {
    /// The live bytes then, rounded up to 256 a block.
    pub bytes: u64,
    /// Nanoseconds since then.
    pub ago_ns: u64,
    /// Nanoseconds that the rings cover: there may have been a higher peak before.
    pub covers_ns: u64,
    /// The tags that held them, most bytes first.
    pub by_tag: Vec<TagBytes>,
}

/// Returns the peak of a heap whose device the events are of; `None` if the recorder is off, or
/// has recorded no allocation.
///
/// Goes back from the heap as it is now, event by event. Exact while no call is in progress.
#[must_use]
pub fn peak(heap: &Heap) -> Option<Peak> {
    let mut since = recorder::since_start()?;
    let collected = since.progress.collect();
    let times = since.origin.times();
    let Collected { items, complete_from, .. } = collected;
    let pool = heap.parts.first().map(|part| pool_of(part.stream));
    let is_of_heap = |stream: u64| match pool {
        Some(pool) => (stream >> 40) as u32 == pool,
        None => usize::from(device_of((stream >> 40) as u32)) == heap.device,
    };
    let events: Vec<&RingEvent> = items
        .iter()
        .filter_map(|item| match item {
            Item::Event(event) if is_of_heap(event.stream) => Some(event),
            _ => None,
        })
        .filter(|event| event.ticks >= complete_from && Change::of(event).is_some())
        .collect();
    let first = events.first()?;
    let mut live = Live::of(heap);
    let mut highest = live.bytes;
    let mut at = events.len();
    for (nth, event) in events.iter().enumerate().rev() {
        live.undo(event);
        if live.bytes > highest {
            highest = live.bytes;
            at = nth;
        }
    }
    let mut live = Live::of(heap);
    events[at..].iter().rev().for_each(|event| live.undo(event));
    let now = since.origin.now_ns();
    let ago = |ticks| now.saturating_sub(times.ns(ticks));
    let ago_ns = events.get(at).map_or(0, |event| ago(event.ticks));
    let mut by_tag: Vec<_> = live.by_tag.into_values().filter(|held| held.bytes > 0).collect();
    by_tag.sort_by_key(|held| (Reverse(held.bytes), held.tag));
    Some(Peak { bytes: highest, ago_ns, covers_ns: ago(first.ticks), by_tag })
}

/// The effect of an event on the live bytes.
enum Change {
    Adds,
    Removes,
}

impl Change {
    fn of(event: &RingEvent) -> Option<Self> {
        match event.head.kind {
            Kind::Allocate => Some(Self::Adds),
            Kind::Free | Kind::Retire => Some(Self::Removes),
            _ => None,
        }
    }
}

struct Live {
    bytes: u64,
    by_tag: BTreeMap<AllocTag, TagBytes>,
}

impl Live {
    fn of(heap: &Heap) -> Self {
        let mut live = Self { bytes: 0, by_tag: BTreeMap::new() };
        for part in heap.parts.iter().filter(|part| part.state == HeapState::InUse) {
            live.add(part.tag, part.bytes);
        }
        live
    }

    fn undo(&mut self, event: &RingEvent) {
        let tag = AllocTag::new(event.text());
        let bytes = event.b.checked_next_multiple_of(256).unwrap_or(u64::MAX);
        match Change::of(event) {
            Some(Change::Adds) => {
                self.bytes = self.bytes.saturating_sub(bytes);
                if let Some(held) = self.by_tag.get_mut(&tag) {
                    held.bytes = held.bytes.saturating_sub(bytes);
                    held.blocks = held.blocks.saturating_sub(1);
                }
            }
            Some(Change::Removes) => self.add(tag, bytes),
            None => {}
        }
    }

    fn add(&mut self, tag: AllocTag, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        let held = self.by_tag.entry(tag).or_insert(TagBytes { tag, bytes: 0, blocks: 0 });
        held.bytes = held.bytes.saturating_add(bytes);
        held.blocks += 1;
    }
}

/// Returns the live bytes by tag of a heap as it is now, most bytes first.
#[must_use]
pub fn by_tag(heap: &Heap) -> Vec<TagBytes> {
    let mut by_tag: Vec<_> = Live::of(heap).by_tag.into_values().collect();
    by_tag.sort_by_key(|held| (Reverse(held.bytes), held.tag));
    by_tag
}
