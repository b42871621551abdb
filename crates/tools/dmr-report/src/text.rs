//! The report for a terminal: the peak by tag, the largest holders, fragmentation, waits.

use std::fmt::Write;

use dmr_core::size::human_bytes;

use crate::analysis::budgets::HighMarks;
use crate::analysis::holes::{explanations, holes};
use crate::analysis::peak::{Peak, Share, by_tag, holders, peak, shares, sum};
use crate::analysis::stranded::Stranded;
use crate::analysis::waits::{host_pairs, pairs};
use crate::model::{Model, NONE};

/// The number of tags and of pairs of streams that are listed.
const LISTED: usize = 12;
/// The number of holders that are listed.
const HOLDERS: usize = 10;
/// The number of failed requests that are explained.
const EXPLAINED: usize = 3;

/// Writes the report of a model. Lines end in `\n`.
#[must_use]
pub fn report(model: &Model) -> String {
    let mut text = String::new();
    head(model, &mut text);
    if !model.blocks.is_empty() {
        at_peak(model, &mut text);
        fragmentation(model, &mut text);
    }
    waits(model, &mut text);
    refusals(model, &mut text);
    for finding in &model.findings {
        let _ = writeln!(text, "finding  {}", finding.message);
        for side in &finding.sides {
            let stream = side.stream.map_or_else(String::new, |id| format!(" on stream {id}"));
            let call = side.calls.first().map_or_else(String::new, |call| format!(", at {call}"));
            let _ = writeln!(text, "         {}{stream}{call}", side.operation);
        }
    }
    flaw_lines(model).iter().for_each(|line| text.extend([line.as_str(), "\n"]));
    text
}

/// Writes the peak by tag.
#[must_use]
pub fn peak_by_tag(model: &Model) -> String {
    let peak = peak(model);
    let mut text = String::new();
    let name = |tag: u64| tag_name(model, tag as u32).to_owned();
    share_lines(&mut text, "tags", &by_tag(model, peak.event), peak.bytes, name);
    text
}

/// Writes the largest shares of a peak, and a line for the others.
fn share_lines(
    text: &mut String,
    noun: &str,
    shares: &[Share],
    peak: u64,
    name: impl Fn(u64) -> String,
) {
    for share in shares.iter().take(LISTED) {
        let percent = (share.bytes as f64 * 100.0 / peak.max(1) as f64).round();
        let bytes = human_bytes(share.bytes);
        let blocks = counted(share.blocks, "block");
        let name = name(share.of);
        let _ = writeln!(text, "         {bytes:>10}  {percent:>3} %  {name}  ({blocks})");
    }
    if let Some(more) = shares.len().checked_sub(LISTED).filter(|more| *more > 0) {
        let bytes = sum(shares[LISTED..].iter().map(|share| share.bytes));
        let _ = writeln!(text, "         {:>10}         {more} more {noun}", human_bytes(bytes));
    }
}

/// Writes the peak by query and by budget, where the file has them.
fn other_shares(model: &Model, peak: &Peak, text: &mut String) {
    let queries = shares(model, peak.event, |model, block| model.blocks.query[block]);
    if queries.iter().any(|share| share.of != 0) {
        text.push_str("by query\n");
        let name = |query: u64| match query {
            0 => "no query".to_owned(),
            query => format!("query {query}"),
        };
        share_lines(text, "queries", &queries, peak.bytes, name);
    }
    let high = HighMarks::of(model);
    let budget = |model: &Model, block: usize| high.budget_of(model, block).into();
    let budgets = shares(model, peak.event, budget);
    if budgets.iter().any(|share| share.of != u64::from(NONE)) {
        text.push_str("by budget of the same name as the tag or the label\n");
        let name = |budget: u64| match budget as u32 {
            NONE => "none".to_owned(),
            budget => model.names.get(budget).to_owned(),
        };
        share_lines(text, "budgets", &budgets, peak.bytes, name);
    }
    for (at, mark) in high.marks.iter().take(LISTED).enumerate() {
        let title = if at == 0 { "budgets" } else { "" };
        let name = match model.names.get(mark.budget) {
            "" => "without a name",
            name => name,
        };
        let _ = writeln!(
            text,
            "{title:<8} {:>10}  of {}, the high mark of {name}, at {}",
            human_bytes(mark.bytes),
            human_bytes(mark.limit),
            seconds(model.events.since_start(mark.event))
        );
    }
}

fn head(model: &Model, text: &mut String) {
    let events = &model.events;
    let last = events.len().checked_sub(1).map_or(NONE, |last| last as u32);
    let _ = writeln!(text, "file     {} · {}", model.source.name, model.source.format);
    if events.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "events   {} in {} · {} · {}",
        grouped(events.len() as u64),
        seconds(events.since_start(last)),
        counted(model.blocks.len() as u64, "block"),
        counted(model.streams.len() as u64, "stream"),
    );
}

fn at_peak(model: &Model, text: &mut String) {
    let peak = peak(model);
    let _ = write!(
        text,
        "peak     {} in use at {}",
        human_bytes(peak.bytes),
        seconds(model.events.since_start(peak.event))
    );
    if peak.retired > 0 {
        let _ = write!(text, ", of which {} were freed and still used", human_bytes(peak.retired));
    }
    if peak.reserved > 0 {
        let _ = write!(text, "; {} reserved", human_bytes(peak.reserved));
    }
    if let Some(stranded) = Stranded::of(model) {
        let bytes = human_bytes(stranded.at(model, peak.event));
        let _ = write!(text, ", {bytes} stranded");
    }
    text.push('\n');
    text.push_str(&peak_by_tag(model));
    other_shares(model, &peak, text);
    for (at, block) in holders(model, peak.event, HOLDERS).into_iter().enumerate() {
        let title = if at == 0 { "holders" } else { "" };
        let _ = writeln!(text, "{title:<8} {}", block_line(model, block));
    }
}

/// Describes a block on one line: its size, tag, stream, and when it lived.
fn block_line(model: &Model, block: usize) -> String {
    let blocks = &model.blocks;
    let from = match blocks.allocated[block] {
        NONE => "before the first event".to_owned(),
        event => format!("from {}", seconds(model.events.since_start(event))),
    };
    let until = match blocks.freed[block] {
        NONE => "never freed".to_owned(),
        event => format!("freed at {}", seconds(model.events.since_start(event))),
    };
    let bytes = human_bytes(blocks.bytes[block]);
    let tag = tag_name(model, blocks.tag[block]);
    let stream = &model.streams[blocks.stream[block] as usize];
    let mut line = format!("{bytes:>10}  {tag}, {stream}, {from}, {until}");
    for name in [blocks.label[block], blocks.site[block]] {
        if let Some(first) = model.names.get(name).lines().next() {
            let _ = write!(line, ", {first}");
        }
    }
    line
}

fn fragmentation(model: &Model, text: &mut String) {
    if !model.source.has_addresses {
        let _ = writeln!(text, "holes    unknown: the file has ids instead of addresses");
        return;
    }
    let peak = peak(model);
    let at_peak = holes(model, peak.event, 1);
    let noun = if at_peak.count == 1 { "hole" } else { "holes" };
    let largest = at_peak.largest.first().map_or(0, |hole| hole.bytes);
    let _ = writeln!(
        text,
        "holes    at the peak {} in {} {noun}, the largest {} · fragmentation {:.0} %",
        human_bytes(at_peak.bytes),
        grouped(at_peak.count),
        human_bytes(largest),
        at_peak.fragmentation() * 100.0
    );
}

fn waits(model: &Model, text: &mut String) {
    for (at, pair) in pairs(model).into_iter().take(LISTED).enumerate() {
        let title = if at == 0 { "waits" } else { "" };
        let because: Vec<_> = pair
            .tags
            .iter()
            .take(3)
            .map(|of| match of.tag {
                NONE => format!("{} without a block", grouped(of.count)),
                tag => format!("{} because of {}", grouped(of.count), tag_name(model, tag)),
            })
            .collect();
        let _ = write!(
            text,
            "{title:<8} {} waits for {}: {} ({})",
            model.streams[pair.waiting as usize],
            model.streams[pair.awaited as usize],
            counted(pair.count, "time"),
            because.join(", ")
        );
        if pair.lengths.count > 0 {
            let _ = write!(
                text,
                "; {} measured: median {}, longest {}",
                grouped(pair.lengths.count),
                seconds(pair.lengths.median),
                seconds(pair.lengths.longest)
            );
        }
        text.push('\n');
    }
    for (at, pair) in host_pairs(model).into_iter().take(LISTED).enumerate() {
        let title = if at == 0 { "host" } else { "" };
        let stream = match pair.stream {
            NONE => "the device".to_owned(),
            stream => model.streams[stream as usize].to_string(),
        };
        let _ = writeln!(
            text,
            "{title:<8} thread {} waits for {stream}: {}, {} in all, longest {}",
            pair.thread,
            counted(pair.lengths.count, "time"),
            seconds(pair.lengths.total),
            seconds(pair.lengths.longest)
        );
    }
}

fn refusals(model: &Model, text: &mut String) {
    for explanation in explanations(model, EXPLAINED, 1) {
        let refusal = &model.refusals[explanation.refusal];
        let _ = writeln!(
            text,
            "refused  {} of {} for {}, by {}",
            human_bytes(refusal.bytes),
            tag_name(model, refusal.tag),
            model.streams[refusal.stream as usize],
            refusal.refused_by
        );
        let _ = writeln!(text, "         {}", explanation.sentence(model));
    }
    if let Some(more) = model.refusals.len().checked_sub(EXPLAINED).filter(|more| *more > 0) {
        let _ = writeln!(text, "         {} refused more", counted(more as u64, "request"));
    }
}

/// Returns what the file has and the report has not, a line each.
pub(crate) fn flaw_lines(model: &Model) -> Vec<String> {
    let flaws = &model.flaws;
    let mut lines = Vec::new();
    if flaws.bad_rows > 0 {
        let rows = counted(flaws.bad_rows, "row");
        lines.push(format!("left out {rows} that cannot be read: {}", flaws.first_bad_row));
    }
    if flaws.unknown_frees > 0 {
        let frees = counted(flaws.unknown_frees, "free");
        lines.push(format!("left out {frees} of blocks that are not live"));
    }
    if flaws.lost_frees > 0 {
        let blocks = counted(flaws.lost_frees, "block");
        lines.push(format!("missing  the frees of {blocks}: their addresses came again"));
    }
    if flaws.lost_events > 0 {
        let events = counted(flaws.lost_events, "event");
        lines.push(format!("missing  {events}: overwritten before the file was written"));
    }
    if !flaws.broken_off.is_empty() {
        lines.push(format!("ends     early: {}", flaws.broken_off));
    }
    lines
}

/// Returns the name of a tag, in words if it is empty.
#[must_use]
pub fn tag_name(model: &Model, tag: u32) -> &str {
    match model.names.get(tag) {
        "" => "no tag",
        name => name,
    }
}

/// Writes nanoseconds as a time: `1.234 s`, `12.3 ms`, `7 us`.
#[must_use]
pub fn seconds(ns: u64) -> String {
    match ns {
        0 => "0 s".to_owned(),
        1..1_000_000 => format!("{} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}

/// Writes a count and its noun.
fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(count))
}

/// Writes `21039` as `21,039`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}
