//! The peak: when most memory was in use, and which blocks held it.

use rustc_hash::FxHashMap;

use crate::model::{EventKind, Model, NONE};

/// The moment at which most memory was in use: live, or freed and still used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// The event after which it was in use; [`NONE`] if that was before the first event.
    pub event: u32,
    /// The bytes in use.
    pub bytes: u64,
    /// The bytes of these that were freed and still used.
    pub retired: u64,
    /// The bytes that were reserved then; 0 if the file does not say.
    pub reserved: u64,
}

/// The bytes that one tag, stream or query held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The index of the tag or the stream, or the number of the query.
    pub of: u64,
    /// The bytes.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// The sums of bytes, after an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes of blocks that are allocated and not freed.
    pub live: u64,
    /// Bytes of blocks that are freed and still used.
    pub retired: u64,
    /// Bytes that are reserved from the driver.
    pub reserved: u64,
}

impl Totals {
    /// Returns the totals before the first event.
    #[must_use]
    pub fn before(model: &Model) -> Self {
        let blocks = &model.blocks;
        let is_before = |block: &usize| blocks.allocated[*block] == NONE;
        let live = (0..blocks.len()).filter(is_before).map(|block| blocks.bytes[block]);
        let spans = model.spans.iter().filter(|span| span.reserved == NONE);
        Self { live: sum(live), retired: 0, reserved: sum(spans.map(|span| span.bytes)) }
    }

    /// Returns the bytes in use.
    #[must_use]
    pub const fn in_use(&self) -> u64 {
        self.live.saturating_add(self.retired)
    }

    /// Adds an event.
    pub fn add(&mut self, model: &Model, event: usize) {
        let subject = model.events.subject[event] as usize;
        let block = || model.blocks.bytes[subject];
        let span = || model.spans[subject].bytes;
        match model.events.kind[event] {
            EventKind::Allocate => self.live = self.live.saturating_add(block()),
            EventKind::Free => self.live = self.live.saturating_sub(block()),
            EventKind::Retire => {
                self.live = self.live.saturating_sub(block());
                self.retired = self.retired.saturating_add(block());
            }
            EventKind::Ready => self.retired = self.retired.saturating_sub(block()),
            EventKind::Reserve => self.reserved = self.reserved.saturating_add(span()),
            EventKind::Release => self.reserved = self.reserved.saturating_sub(span()),
            EventKind::Wait | EventKind::Refuse | EventKind::Mark => {}
        }
    }
}

/// Adds sizes; what a damaged file has may be more than fits.
pub(crate) fn sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// Finds the peak: the first of equal ones.
#[must_use]
pub fn peak(model: &Model) -> Peak {
    let mut totals = Totals::before(model);
    let mut peak = Peak {
        event: NONE,
        bytes: totals.in_use(),
        retired: totals.retired,
        reserved: totals.reserved,
    };
    for event in 0..model.events.len() {
        totals.add(model, event);
        if totals.in_use() > peak.bytes {
            peak = Peak {
                event: event as u32,
                bytes: totals.in_use(),
                retired: totals.retired,
                reserved: totals.reserved,
            };
        }
    }
    peak
}

/// Returns the totals after an event; for [`NONE`], those before the first one.
#[must_use]
pub fn totals_at(model: &Model, event: u32) -> Totals {
    let mut totals = Totals::before(model);
    let events = if event == NONE { 0 } else { event as usize + 1 };
    (0..events.min(model.events.len())).for_each(|event| totals.add(model, event));
    totals
}

/// Returns whether a block was in use after an event: allocated, and its memory not yet ready.
#[must_use]
pub fn is_in_use(model: &Model, block: usize, event: u32) -> bool {
    let before = |at: u32| at != NONE && (event != NONE && at <= event);
    let blocks = &model.blocks;
    (blocks.allocated[block] == NONE || before(blocks.allocated[block]))
        && !before(blocks.ready[block])
}

/// Returns the blocks in use after an event.
pub fn in_use(model: &Model, event: u32) -> impl Iterator<Item = usize> {
    (0..model.blocks.len()).filter(move |block| is_in_use(model, *block, event))
}

/// Returns the shares of the memory in use after an event, the largest first.
#[must_use]
pub fn shares(model: &Model, event: u32, key: impl Fn(&Model, usize) -> u64) -> Vec<Share> {
    let mut sums: FxHashMap<u64, Share> = FxHashMap::default();
    for block in in_use(model, event) {
        let of = key(model, block);
        let share = sums.entry(of).or_insert(Share { of, bytes: 0, blocks: 0 });
        share.bytes = share.bytes.saturating_add(model.blocks.bytes[block]);
        share.blocks += 1;
    }
    let mut shares: Vec<_> = sums.into_values().collect();
    shares.sort_by_key(|share| (std::cmp::Reverse(share.bytes), share.of));
    shares
}

/// Returns the shares by tag.
#[must_use]
pub fn by_tag(model: &Model, event: u32) -> Vec<Share> {
    shares(model, event, |model, block| model.blocks.tag[block].into())
}

/// Returns the largest blocks in use after an event.
#[must_use]
pub fn holders(model: &Model, event: u32, count: usize) -> Vec<usize> {
    let mut blocks: Vec<_> = in_use(model, event).collect();
    let order = |block: &usize| (std::cmp::Reverse(model.blocks.bytes[*block]), *block);
    if blocks.len() > count {
        blocks.select_nth_unstable_by_key(count, order);
        blocks.truncate(count);
    }
    blocks.sort_by_key(order);
    blocks
}
