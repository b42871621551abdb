//! Recordings: what is in use, what is retired, what is reserved, and why a request failed.

use dmr_recording::{Event, Refusal, Region, RegionState, SpanChange, StreamNumber, StringId};
use dmr_report::analysis::budgets::HighMarks;
use dmr_report::analysis::holes::{HoleReason, explanations, holes};
use dmr_report::analysis::peak::{Totals, holders, is_in_use, peak, totals_at};
use dmr_report::analysis::waits::{host_pairs, pairs};
use dmr_report::model::NONE;
use proptest::prelude::*;

use crate::support::{MIB, open, recording};

const STREAM: StreamNumber = StreamNumber::new(1, 0);
const OTHER: StreamNumber = StreamNumber::new(1, 1);
const BASE: u64 = 0x7000_0000_0000;

fn span(change: SpanChange, address: u64, bytes: u64, stream: StreamNumber) -> Event {
    Event::Span { change, address, bytes, stream }
}

#[test]
fn retired_memory_is_in_use_until_it_is_ready() {
    let model = open(&recording(|to| {
        let block = to.block(1, BASE, 100, "a");
        to.at(10, Event::Allocate(block));
        to.at(20, Event::Retire(block));
        to.at(30, Event::Ready { address: BASE, bytes: 512, stream: STREAM });
    }));
    assert_eq!(totals_at(&model, 1), Totals { live: 0, retired: 100, reserved: 0 });
    assert!(is_in_use(&model, 0, 1));
    assert!(!is_in_use(&model, 0, 2));
    assert_eq!(totals_at(&model, 2), Totals::default());
}

#[test]
fn blocks_that_are_ready_as_one_chunk_are_ready() {
    let model = open(&recording(|to| {
        for (generation, at) in [(1, 0), (2, 512), (3, 1024)] {
            let block = to.block(generation, BASE + at, 100, "a");
            to.at(generation, Event::Allocate(block));
            to.at(10, Event::Retire(block));
        }
        to.at(20, Event::Ready { address: BASE, bytes: 1024, stream: STREAM });
    }));
    let last = model.events.len() as u32 - 1;
    assert_eq!(totals_at(&model, last), Totals { live: 0, retired: 100, reserved: 0 });
}

#[test]
fn records_of_several_threads_are_sorted_by_time() {
    let model = open(&recording(|to| {
        let block = to.block(1, BASE, 100, "a");
        to.at(20, Event::Free(block));
        to.at(10, Event::Allocate(block));
    }));
    assert_eq!(model.blocks.freed, [1]);
    assert_eq!(model.flaws.unknown_frees, 0);
}

#[test]
fn what_was_there_before_the_recording_is_seen() {
    let model = open(&recording(|to| {
        let tag = to.writer.intern("weights");
        to.at(0, Event::SnapshotBegin { why: StringId::EMPTY, reserved: 3 * MIB });
        for (at, state) in [RegionState::InUse, RegionState::Free].into_iter().enumerate() {
            let address = BASE + at as u64 * MIB;
            let region = Region { address, bytes: MIB, state, stream: STREAM, tag };
            to.at(0, Event::Region(region));
        }
        to.at(0, Event::SnapshotEnd);
    }));
    assert_eq!(Totals::before(&model), Totals { live: MIB, retired: 0, reserved: 2 * MIB });
    assert_eq!(holders(&model, NONE, 10), [0]);
}

#[test]
fn a_block_of_the_snapshot_is_freed_by_its_generation() {
    let model = open(&recording(|to| {
        let block = to.block(7, BASE, MIB, "weights");
        let region = Region {
            address: BASE,
            bytes: MIB,
            state: RegionState::InUse,
            stream: STREAM,
            tag: block.tag,
        };
        to.at(0, Event::SnapshotBegin { why: StringId::EMPTY, reserved: MIB });
        to.at(0, Event::Region(region));
        to.at(0, Event::SnapshotEnd);
        to.at(10, Event::Free(block));
    }));
    assert_eq!(totals_at(&model, 0).live, 0);
    assert_eq!(model.blocks.len(), 1, "the same block, not two");
}

#[test]
fn holes_are_between_blocks_within_what_is_reserved() {
    let model = open(&recording(|to| {
        to.at(0, span(SpanChange::Reserve, BASE, 10 * MIB, STREAM));
        for (generation, at) in [(1, 0), (2, 3), (3, 8)] {
            let block = to.block(generation, BASE + at * MIB, MIB, "a");
            to.at(generation, Event::Allocate(block));
        }
    }));
    let found = holes(&model, 3, 10);
    let sizes: Vec<_> = found.largest.iter().map(|hole| hole.bytes / MIB).collect();
    assert_eq!(sizes, [4, 2, 1]);
    assert_eq!(found.bytes, 7 * MIB);
    let largest = found.largest[0];
    assert_eq!((largest.before, largest.after), (1, 2));
    assert!((found.fragmentation() - 3.0 / 7.0).abs() < 1e-9);
}

#[test]
fn a_hole_of_another_stream_is_named_as_the_reason() {
    let model = open(&recording(|to| {
        to.at(0, span(SpanChange::Reserve, BASE, 2 * MIB, STREAM));
        to.at(0, span(SpanChange::Reserve, BASE + 2 * MIB, 8 * MIB, OTHER));
        let tag = to.writer.intern("a");
        let limit = to.writer.intern("budget `x`");
        let refusal = Refusal {
            bytes: 4 * MIB,
            stream: STREAM,
            tag,
            limit,
            limit_bytes: 12 * MIB,
            ..Refusal::default()
        };
        to.at(5, Event::Refused(refusal));
    }));
    let all = explanations(&model, 10, 10);
    let explained = &all[0];
    let request = &model.refusals[0];
    let reasons: Vec<_> =
        explained.holes.largest.iter().map(|hole| explained.reason(request, hole)).collect();
    assert_eq!(reasons, [HoleReason::OtherStream, HoleReason::TooSmall]);
    assert_eq!(
        explained.sentence(&model),
        "4 MiB were requested, and 10 MiB were free, but in 2 holes: the largest had 8 MiB, which \
         belongs to another stream. More memory could not be reserved: the limit of 12 MiB left 2 MiB."
    );
}

#[test]
fn a_part_of_a_span_can_be_given_back() {
    let model = open(&recording(|to| {
        to.at(0, span(SpanChange::Reserve, BASE, 10 * MIB, STREAM));
        to.at(1, span(SpanChange::Release, BASE + 2 * MIB, 3 * MIB, STREAM));
    }));
    let last = model.events.len() as u32 - 1;
    assert_eq!(totals_at(&model, last).reserved, 7 * MIB);
    let sizes: Vec<_> = holes(&model, last, 9).largest.iter().map(|it| it.bytes / MIB).collect();
    assert_eq!(sizes, [5, 2]);
}

#[test]
fn a_second_process_in_a_file_begins_after_the_first_with_nothing() {
    let process = |bytes: u64| {
        recording(|to| {
            to.at(10, span(SpanChange::Map, BASE, 2 * MIB, STREAM));
            let block = to.block(1, BASE, bytes, "a");
            to.at(20, Event::Allocate(block));
        })
    };
    // The second one without the head of a file.
    let model = open(&[process(100), process(300)[12..].to_vec()].concat());
    let at = |bytes: u64| model.blocks.bytes.iter().position(|it| *it == bytes).unwrap();
    let [first, second] = [at(100), at(300)];
    assert!(model.blocks.ready[first] < model.blocks.allocated[second]);
    assert_eq!(model.events.since_start(model.blocks.allocated[second]), 10 + 20);
    let last = model.events.len() as u32 - 1;
    assert_eq!(totals_at(&model, last), Totals { live: 300, retired: 0, reserved: 2 * MIB });
}

#[test]
fn what_is_reserved_and_mapped_is_counted_once() {
    let model = open(&recording(|to| {
        to.at(0, span(SpanChange::Reserve, 0, 4 * MIB, STREAM));
        to.at(1, span(SpanChange::Map, BASE, 2 * MIB, STREAM));
        to.at(2, span(SpanChange::Map, BASE + 2 * MIB, 2 * MIB, STREAM));
        to.at(3, span(SpanChange::Unmap, BASE, 2 * MIB, STREAM));
        to.at(4, span(SpanChange::Release, 0, 2 * MIB, STREAM));
    }));
    assert_eq!(model.spans.len(), 2);
    assert_eq!(totals_at(&model, 1).reserved, 4 * MIB);
    assert_eq!(totals_at(&model, 2).reserved, 2 * MIB);
}

#[test]
fn waits_are_counted_by_pair_and_by_tag_of_the_block() {
    let model = open(&recording(|to| {
        let wait =
            |block| Event::Wait { stream: OTHER, awaited: STREAM, block, launch: 3, work: 1 };
        let batch = to.block(1, BASE, 100, "batch");
        let mask = to.block(2, BASE + 512, 100, "mask");
        to.at(1, Event::Allocate(batch));
        to.at(2, Event::Allocate(mask));
        for (at, block) in [1, 1, 2, 0].into_iter().enumerate() {
            to.at(3 + at as u64, wait(block));
        }
    }));
    let found = pairs(&model);
    assert_eq!((found.len(), found[0].count), (1, 4));
    let tags: Vec<_> = found[0].tags.iter().map(|of| (model.names.get(of.tag), of.count)).collect();
    assert_eq!(tags, [("batch", 2), ("mask", 1), ("", 1)]);
    assert_eq!(model.names.get(model.waits[0].reason), "launch 3");
}

#[test]
fn measured_waits_have_a_median_by_pair_and_waits_of_the_host_a_sum() {
    let model = open(&recording(|to| {
        let batch = to.block(1, BASE, 100, "batch");
        to.at(1_000, Event::Allocate(batch));
        for (at, length_ns) in [(2_000, 500), (3_000, 9_000), (4_000, 700)] {
            let stream = OTHER;
            to.at(at, Event::Wait { stream, awaited: STREAM, block: 1, launch: 3, work: at });
            to.at(
                at + 900,
                Event::WaitLength {
                    stream,
                    awaited: STREAM,
                    block: 1,
                    launch: 3,
                    work: at,
                    length_ns,
                    age_ns: 900,
                },
            );
        }
        to.at(9_000, Event::HostWait { stream: OTHER, length_ns: 4_000 });
        to.at(9_500, Event::HostWait { stream: OTHER, length_ns: 100 });
        to.at(9_900, Event::HostWait { stream: StreamNumber(0), length_ns: 200 });
    }));
    let found = pairs(&model);
    assert_eq!((found.len(), found[0].count), (1, 3));
    let lengths = found[0].lengths;
    assert_eq!([lengths.count, lengths.median, lengths.longest], [3, 700, 9_000]);
    assert_eq!(model.wait_lengths[1].begin, 3_000);
    assert_eq!(model.wait_lengths[1].block, 0);
    let hosts = host_pairs(&model);
    assert_eq!((hosts[0].lengths.total, hosts[0].lengths.count, hosts[1].stream), (4_100, 2, NONE));
    assert_eq!(model.host_waits[0].begin, 5_000);
    let text = dmr_report::text::report(&model);
    for line in [
        "(3 because of batch); 3 measured: median 0.7 us, longest 9 us\n",
        "host     thread 0 waits for stream 1: 2 times, 4.1 us in all, longest 4 us\n",
        "         thread 0 waits for the device: 1 time, 0.2 us in all, longest 0.2 us\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn a_second_high_mark_of_a_budget_is_the_one_that_is_kept() {
    let model = open(&recording(|to| {
        let [scan, join] = ["scan", "join"].map(|name| to.writer.intern(name));
        let block = to.block(1, BASE, 100, "scan");
        to.at(1, Event::Allocate(block));
        for (at, budget, bytes) in [(2, scan, 5), (3, join, 20), (4, scan, 9)] {
            to.at(at, Event::BudgetPeak { budget, bytes, limit: 30 });
        }
    }));
    let high = HighMarks::of(&model);
    let marks: Vec<_> = high.marks.iter().map(|mark| (mark.bytes, mark.event)).collect();
    assert_eq!(marks, [(20, 2), (9, 3)]);
    assert_eq!(model.names.get(high.budget_of(&model, 0)), "scan");
}

#[test]
fn sizes_and_addresses_at_the_end_of_their_range_are_reported() {
    let model = open(&recording(|to| {
        to.at(0, span(SpanChange::Map, u64::MAX, 1, STREAM));
        for generation in 1..4 {
            let address = u64::MAX - generation % 2;
            let block = to.block(generation, address, u64::MAX - generation, "a");
            to.at(generation, Event::Allocate(block));
        }
        let length = |block| Event::WaitLength {
            stream: STREAM,
            awaited: OTHER,
            block,
            launch: 0,
            work: 0,
            length_ns: u64::MAX,
            age_ns: u64::MAX,
        };
        to.at(9, length(1));
        to.at(9, length(2));
        to.at(9, Event::HostWait { stream: STREAM, length_ns: u64::MAX });
    }));
    assert!(dmr_report::text::report(&model).contains(" stranded"));
    dmr_report::page::write(&model, std::io::sink()).unwrap();
}

#[test]
fn a_recording_that_breaks_off_is_read_up_to_there() {
    let whole = recording(|to| {
        for generation in 1..200_000 {
            let block = to.block(generation, BASE + generation * 512, 100, "a");
            to.at(generation, Event::Allocate(block));
        }
    });
    let model = open(&whole[..whole.len() * 2 / 3]);
    assert!(model.blocks.len() > 1000);
    assert!(model.flaws.broken_off.starts_with("byte "), "{}", model.flaws.broken_off);
    assert!(dmr_report::text::report(&model).contains("ends     early: byte "));
}

/// The peak of a list of allocations and frees, by adding up.
fn peak_by_hand(steps: &[(bool, u64)]) -> u64 {
    let mut live = 0;
    let mut most = 0;
    for (is_allocation, bytes) in steps {
        live = if *is_allocation { live + bytes } else { live - bytes };
        most = most.max(live);
    }
    most
}

proptest! {
    #[test]
    fn the_peak_is_held_by_the_blocks_in_use_then(
        choices in proptest::collection::vec((any::<bool>(), 1_u64..1000, any::<prop::sample::Index>()), 1..120),
    ) {
        let mut steps = Vec::new();
        let bytes = recording(|to| {
            let mut live = Vec::new();
            for (at, (frees, size, which)) in choices.iter().enumerate() {
                let at = at as u64 + 1;
                if *frees && !live.is_empty() {
                    let block: dmr_recording::Block = live.swap_remove(which.index(live.len()));
                    to.at(at, Event::Free(block));
                    steps.push((false, block.bytes));
                } else {
                    let block = to.block(at, BASE + at * 4096, *size, "a");
                    to.at(at, Event::Allocate(block));
                    live.push(block);
                    steps.push((true, *size));
                }
            }
        });
        let model = open(&bytes);
        let peak = peak(&model);
        prop_assert_eq!(peak.bytes, peak_by_hand(&steps));
        let held: u64 = holders(&model, peak.event, usize::MAX)
            .into_iter()
            .map(|block| model.blocks.bytes[block])
            .sum();
        prop_assert_eq!(held, peak.bytes);
    }
}
