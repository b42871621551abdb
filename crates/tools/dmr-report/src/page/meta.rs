//! The small part of the page's data, as JSON: names, failed requests, findings.

use serde::Serialize;

use super::columns::Description;
use crate::analysis::holes::{Explanation, HoleReason, explanations};
use crate::analysis::layout::{Layout, position};
use crate::findings::Finding;
use crate::model::{BudgetPeak, Model};
use crate::text::flaw_lines;

/// The number of failed requests that are explained, and of their holes that are listed.
const EXPLAINED: usize = 20;
const HOLES: usize = 40;
/// The number of high marks of budgets that a page has: the last ones.
const MARKS: usize = 4096;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta<'a> {
    format: String,
    has_addresses: bool,
    names: Vec<&'a str>,
    streams: Vec<String>,
    /// The names that are tags.
    tags: Vec<u32>,
    segments: Vec<Segment>,
    map_bytes: u64,
    /// The bytes that the sizes of blocks are multiples of.
    grain: u64,
    /// The bytes of pages or segments with a block, before the first event.
    occupied_before: Option<u64>,
    refusal_count: usize,
    refusals: Vec<Refused>,
    budget_peaks: Vec<Mark>,
    findings: &'a [Finding],
    flaws: Vec<String>,
    columns: Vec<&'a Description>,
}

#[derive(Serialize)]
struct Segment {
    /// Hexadecimal: JavaScript's numbers have 53 bits.
    address: String,
    position: u64,
    bytes: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Refused {
    event: u32,
    time: u64,
    bytes: u64,
    stream: u32,
    tag: u32,
    by: String,
    sentence: String,
    in_use: u64,
    retired: u64,
    reserved: u64,
    hole_count: u64,
    hole_bytes: u64,
    holes: Vec<Hole>,
}

/// A new high mark of a budget.
#[derive(Serialize)]
struct Mark {
    event: u32,
    budget: u32,
    bytes: u64,
    limit: u64,
}

#[derive(Serialize)]
struct Hole {
    position: u64,
    bytes: u64,
    before: u32,
    after: u32,
    reason: String,
}

impl<'a> Meta<'a> {
    pub(super) fn new(
        model: &'a Model,
        layout: &Layout,
        columns: Vec<&'a Description>,
        occupied_before: Option<u64>,
    ) -> Self {
        let mut tags = model.blocks.tag.clone();
        tags.sort_unstable();
        tags.dedup();
        let segments = layout.segments.iter().map(|segment| Segment {
            address: format!("{:#x}", segment.address),
            position: segment.position,
            bytes: segment.bytes,
        });
        let marks = &model.budget_peaks[model.budget_peaks.len().saturating_sub(MARKS)..];
        let budget_peaks = marks.iter().map(|mark| {
            let BudgetPeak { event, budget, bytes, limit } = *mark;
            Mark { event, budget, bytes, limit }
        });
        let explained = explanations(model, EXPLAINED, HOLES);
        Self {
            format: model.source.format.to_string(),
            has_addresses: model.source.has_addresses,
            names: model.names.iter().collect(),
            streams: model.streams.iter().map(ToString::to_string).collect(),
            tags,
            segments: segments.collect(),
            map_bytes: layout.bytes,
            grain: model.units.grain(),
            occupied_before,
            refusal_count: model.refusals.len(),
            refusals: explained.iter().map(|it| Refused::new(model, layout, it)).collect(),
            budget_peaks: budget_peaks.collect(),
            findings: &model.findings,
            flaws: flaw_lines(model),
            columns,
        }
    }
}

impl Refused {
    fn new(model: &Model, layout: &Layout, explained: &Explanation) -> Self {
        let refusal = &model.refusals[explained.refusal];
        let holes = explained.holes.largest.iter().map(|hole| Hole {
            position: position(&layout.segments, hole.address),
            bytes: hole.bytes,
            before: hole.before,
            after: hole.after,
            reason: match explained.reason(refusal, hole) {
                HoleReason::TooSmall => "smaller than the request".to_owned(),
                HoleReason::OtherStream => {
                    format!("belongs to {}", model.streams[hole.stream as usize])
                }
                HoleReason::Unknown => "large enough: the file does not say why not".to_owned(),
            },
        });
        Self {
            event: explained.event,
            time: model.events.since_start(explained.event),
            bytes: refusal.bytes,
            stream: refusal.stream,
            tag: refusal.tag,
            by: refusal.refused_by.clone(),
            sentence: explained.sentence(model),
            in_use: explained.in_use,
            retired: explained.retired,
            reserved: explained.reserved,
            hole_count: explained.holes.count,
            hole_bytes: explained.holes.bytes,
            holes: holes.collect(),
        }
    }
}
