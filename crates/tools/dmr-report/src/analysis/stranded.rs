//! Stranded memory: reserved, without a live block, and neither returnable nor movable.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::model::{EventKind, Model, NONE, Units};

/// The stranded bytes over time, as `gpu.report()` of dmr counts them: those of blocks that are
/// freed and still used, and those that are free in a page or segment that holds a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stranded {
    /// The bytes of units that hold a block, before the first event. A unit is what goes back to
    /// the driver as a whole: a page or a segment.
    pub occupied_before: u64,
    /// Their bytes after each event: these less the live blocks are stranded.
    pub occupied: Vec<u64>,
    /// The live bytes before the first event, each block rounded up to [`Units::grain`].
    pub live_before: u64,
}

impl Stranded {
    /// Adds up all events; `None` if the file does not say what is returned as a whole.
    #[must_use]
    pub fn of(model: &Model) -> Option<Self> {
        let mut units = Counts::new(model)?;
        let blocks = &model.blocks;
        let spans = &model.spans;
        let mut stranded = Self::default();
        for span in (0..spans.len()).filter(|span| spans[*span].reserved == NONE) {
            units.add_unit(spans[span].address, spans[span].bytes);
        }
        for block in (0..blocks.len()).filter(|block| blocks.allocated[*block] == NONE) {
            units.change(blocks.address[block], units.grain.round(blocks.bytes[block]), true);
            let size = units.grain.round(blocks.bytes[block]);
            stranded.live_before = stranded.live_before.saturating_add(size);
        }
        stranded.occupied_before = units.occupied;
        stranded.occupied.reserve_exact(model.events.len());
        for event in 0..model.events.len() {
            let subject = model.events.subject[event] as usize;
            let grain = units.grain;
            let size = |block: usize| grain.round(blocks.bytes[block]);
            match model.events.kind[event] {
                EventKind::Allocate => {
                    units.change(blocks.address[subject], size(subject), true);
                }
                EventKind::Free | EventKind::Ready => {
                    units.change(blocks.address[subject], size(subject), false);
                }
                EventKind::Reserve => {
                    units.add_unit(spans[subject].address, spans[subject].bytes);
                }
                EventKind::Release => units.remove_unit(spans[subject].address),
                EventKind::Retire | EventKind::Wait | EventKind::Refuse | EventKind::Mark => {}
            }
            stranded.occupied.push(units.occupied);
        }
        Some(stranded)
    }

    /// Returns the stranded bytes after an event; for [`NONE`], those before the first one.
    #[must_use]
    pub fn at(&self, model: &Model, event: u32) -> u64 {
        let grain = Grain(model.units.grain());
        let events = if event == NONE { 0 } else { event as usize + 1 };
        let mut live = self.live_before;
        for event in 0..events.min(model.events.len()) {
            let block = model.events.subject[event] as usize;
            let size = || grain.round(model.blocks.bytes[block]);
            match model.events.kind[event] {
                EventKind::Allocate => live = live.saturating_add(size()),
                EventKind::Free | EventKind::Retire => live = live.saturating_sub(size()),
                _ => {}
            }
        }
        let occupied = match events {
            0 => self.occupied_before,
            events => self.occupied[events.min(self.occupied.len()) - 1],
        };
        occupied.saturating_sub(live)
    }
}

/// The bytes that blocks are cut in.
#[derive(Clone, Copy)]
struct Grain(u64);

impl Grain {
    fn round(self, bytes: u64) -> u64 {
        bytes.max(1).checked_next_multiple_of(self.0).unwrap_or(bytes)
    }
}

/// The number of blocks in each unit.
struct Counts {
    grain: Grain,
    occupied: u64,
    kind: Kind,
}

enum Kind {
    Pages {
        size: u64,
        /// The blocks that begin or end in a page. What is between those pages is the block's own.
        blocks: FxHashMap<u64, u32>,
    },
    Spans {
        units: BTreeMap<u64, Unit>,
        blocks: BTreeMap<u64, u64>,
    },
}

#[derive(Clone, Copy)]
struct Unit {
    end: u64,
    blocks: u32,
}

impl Counts {
    fn new(model: &Model) -> Option<Self> {
        let kind = match model.units {
            Units::Unknown => return None,
            Units::Pages { size, .. } => Kind::Pages { size, blocks: FxHashMap::default() },
            Units::Spans { .. } => Kind::Spans { units: BTreeMap::new(), blocks: BTreeMap::new() },
        };
        Some(Self { grain: Grain(model.units.grain()), occupied: 0, kind })
    }

    /// Adds the block of a range, or removes it.
    fn change(&mut self, address: u64, bytes: u64, adds: bool) {
        let end = address.saturating_add(bytes);
        let Self { occupied, kind, .. } = self;
        match kind {
            Kind::Pages { size, blocks } => {
                let [first, last] = [address / *size, (end - 1) / *size];
                for page in std::iter::once(first).chain((last > first).then_some(last)) {
                    let count = blocks.entry(page).or_default();
                    add(occupied, count, *size, adds);
                    if *count == 0 {
                        blocks.remove(&page);
                    }
                }
                let between = last.saturating_sub(first).saturating_sub(1).saturating_mul(*size);
                *occupied = match adds {
                    true => occupied.saturating_add(between),
                    false => occupied.saturating_sub(between),
                };
            }
            Kind::Spans { units, blocks } => {
                match adds {
                    true => blocks.insert(address, end),
                    false => blocks.remove(&address),
                };
                for (start, unit) in units.range_mut(..end).rev() {
                    if unit.end <= address {
                        break;
                    }
                    add(occupied, &mut unit.blocks, unit.end - start, adds);
                }
            }
        }
    }

    fn add_unit(&mut self, address: u64, bytes: u64) {
        let Kind::Spans { units, blocks } = &mut self.kind else { return };
        let end = address.saturating_add(bytes);
        let inside = blocks.range(..end).rev().take_while(|(_, block_end)| **block_end > address);
        let count = inside.count() as u32;
        units.insert(address, Unit { end, blocks: count });
        if count > 0 {
            self.occupied = self.occupied.saturating_add(end - address);
        }
    }

    fn remove_unit(&mut self, address: u64) {
        let Kind::Spans { units, .. } = &mut self.kind else { return };
        if let Some(unit) = units.remove(&address)
            && unit.blocks > 0
        {
            self.occupied = self.occupied.saturating_sub(unit.end - address);
        }
    }
}

/// Adds a block to the count of a unit, or removes one; a unit with blocks is occupied.
fn add(occupied: &mut u64, count: &mut u32, unit: u64, adds: bool) {
    match adds {
        true if *count == 0 => *occupied = occupied.saturating_add(unit),
        false if *count == 1 => *occupied = occupied.saturating_sub(unit),
        _ => {}
    }
    *count = if adds { count.saturating_add(1) } else { count.saturating_sub(1) };
}
