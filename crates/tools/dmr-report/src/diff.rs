//! Two files compared: the peaks, and the tags that hold more or less at them.

use std::collections::BTreeMap;
use std::fmt::Write;

use dmr_core::size::human_bytes;

use crate::analysis::holes::holes;
use crate::analysis::peak::{by_tag, peak};
use crate::analysis::waits::pairs;
use crate::model::Model;
use crate::text::{grouped, tag_name};

/// The number of tags and of pairs of streams that are listed.
const LISTED: usize = 20;

/// The bytes of a tag at the peak of each file.
#[derive(Clone, Copy, Debug, Default)]
struct Sides {
    before: u64,
    after: u64,
}

impl Sides {
    fn change(self) -> u64 {
        self.before.abs_diff(self.after)
    }
}

/// Writes the differences of two models. Lines end in `\n`.
#[must_use]
pub fn diff(before: &Model, after: &Model) -> String {
    let mut text = String::new();
    let peaks = [peak(before), peak(after)];
    let [first, second] = [before, after].map(|model| model.source.name.as_str());
    // Writing to a string cannot fail.
    let _ = writeln!(text, "before   {first}");
    let _ = writeln!(text, "after    {second}");
    let sides = |before: u64, after: u64| Sides { before, after };
    line(&mut text, "peak", "in use", sides(peaks[0].bytes, peaks[1].bytes));
    let mut tags: BTreeMap<&str, Sides> = BTreeMap::new();
    for share in by_tag(before, peaks[0].event) {
        tags.entry(tag_name(before, share.of as u32)).or_default().before = share.bytes;
    }
    for share in by_tag(after, peaks[1].event) {
        tags.entry(tag_name(after, share.of as u32)).or_default().after = share.bytes;
    }
    let mut changed: Vec<_> = tags.into_iter().filter(|(_, sides)| sides.change() > 0).collect();
    changed.sort_by_key(|(tag, sides)| (std::cmp::Reverse(sides.change()), *tag));
    for (tag, sides) in changed.iter().take(LISTED) {
        line(&mut text, "", tag, *sides);
    }
    if let Some(more) = changed.len().checked_sub(LISTED).filter(|more| *more > 0) {
        let _ = writeln!(text, "         {more} more tags differ");
    }
    line(&mut text, "reserved", "at the peak", sides(peaks[0].reserved, peaks[1].reserved));
    let free = [holes(before, peaks[0].event, 1), holes(after, peaks[1].event, 1)];
    line(&mut text, "holes", "at the peak", sides(free[0].bytes, free[1].bytes));
    let count = |label: &str, before: usize, after: usize| {
        let before = grouped(before as u64);
        let after = grouped(after as u64);
        format!("{label:<8} {before:>10} → {after:>10}\n")
    };
    text += &count("events", before.events.len(), after.events.len());
    text += &count("refused", before.refusals.len(), after.refusals.len());
    text += &count("waits", before.waits.len(), after.waits.len());
    write_pairs(&mut text, before, after);
    text
}

/// Writes the pairs of streams whose numbers of waits differ.
fn write_pairs(text: &mut String, before: &Model, after: &Model) {
    let mut all: BTreeMap<String, Sides> = BTreeMap::new();
    let name = |model: &Model, waiting: u32, awaited: u32| {
        let stream = |index: u32| model.streams[index as usize].to_string();
        format!("{} waits for {}", stream(waiting), stream(awaited))
    };
    for pair in pairs(before) {
        all.entry(name(before, pair.waiting, pair.awaited)).or_default().before = pair.count;
    }
    for pair in pairs(after) {
        all.entry(name(after, pair.waiting, pair.awaited)).or_default().after = pair.count;
    }
    let changed = all.into_iter().filter(|(_, sides)| sides.change() > 0);
    for (pair, Sides { before, after }) in changed.take(LISTED) {
        let _ = writeln!(text, "         {:>10} → {:>10}  {pair}", grouped(before), grouped(after));
    }
}

fn line(text: &mut String, label: &str, name: &str, sides: Sides) {
    let Sides { before, after } = sides;
    let sign = if after >= before { '+' } else { '−' };
    let change = human_bytes(sides.change());
    let _ = writeln!(
        text,
        "{label:<8} {:>10} → {:>10}  {sign}{change}  {name}",
        human_bytes(before),
        human_bytes(after)
    );
}
