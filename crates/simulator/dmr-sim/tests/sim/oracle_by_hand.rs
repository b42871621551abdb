//! The oracle itself, on programs small enough to judge by hand.

use crate::support::generate;
use crate::support::oracle::{self, Kind};
use crate::support::program::{Host, How, Outcome, Program, Span, Step, Stream, StreamKind};

use StreamKind::{Blocking, Legacy, NonBlocking};

/// Returns the findings of the oracle: step, kind, the other step.
fn findings(streams: &[StreamKind], steps: &[Step]) -> Vec<(usize, Kind, Option<usize>)> {
    findings_with(streams, steps, |_| false)
}

/// Runs a program in which the queries of some steps return "done".
fn findings_with(
    streams: &[StreamKind],
    steps: &[Step],
    ready: impl Fn(usize) -> bool,
) -> Vec<(usize, Kind, Option<usize>)> {
    let program = Program {
        seed: 0,
        streams: streams.to_vec(),
        events: 4,
        buffers: 4,
        steps: steps.to_vec(),
    };
    let outcomes: Vec<Outcome> = steps
        .iter()
        .enumerate()
        .map(|(index, step)| Outcome {
            address: match step {
                Step::Alloc { buf, .. } => Some(0x1000 * (*buf as u64 + 1)),
                _ => None,
            },
            ready: ready(index),
            ..Outcome::default()
        })
        .collect();
    oracle::judge(&program, &outcomes)
        .findings
        .iter()
        .map(|finding| (finding.step, finding.kind, finding.first))
        .collect()
}

fn alloc(buf: usize) -> Step {
    let how = How::Sync;
    let bytes = 100;
    Step::Alloc { buf, bytes, how }
}

fn alloc_on(buf: usize, stream: Stream) -> Step {
    let how = How::Async(stream);
    let bytes = 100;
    Step::Alloc { buf, bytes, how }
}

fn free(buf: usize) -> Step {
    let how = How::Sync;
    Step::Free { buf, skew: 0, how }
}

fn free_on(buf: usize, stream: Stream) -> Step {
    let how = How::Async(stream);
    Step::Free { buf, skew: 0, how }
}

fn span(buf: usize, offset: u64, len: u64) -> Span {
    Span { buf, offset, len }
}

fn fill(stream: Stream, buf: usize) -> Step {
    fill_span(stream, span(buf, 0, 100))
}

fn fill_span(stream: Stream, dst: Span) -> Step {
    let byte = 1;
    Step::Fill { stream, dst, byte }
}

fn read(stream: Stream, buf: usize) -> Step {
    let src = span(buf, 0, 100);
    let host = Host::Pinned;
    Step::Download { stream, src, host }
}

fn record(event: usize, stream: Stream) -> Step {
    Step::Record { event, stream }
}

fn wait(stream: Stream, event: usize) -> Step {
    Step::Wait { event, stream }
}

#[test]
fn one_stream_is_always_ordered() {
    let steps = [alloc_on(0, 0), fill(0, 0), read(0, 0), fill(0, 0), free_on(0, 0)];
    assert_eq!(findings(&[NonBlocking], &steps), []);
}

#[test]
fn each_pair_of_accesses_on_two_streams_is_a_race_unless_both_read() {
    let streams = [NonBlocking, NonBlocking];
    let on = |first, second| findings(&streams, &[alloc(0), first, second]);
    assert_eq!(on(fill(0, 0), fill(1, 0)), [(2, Kind::WriteAfterWrite, Some(1))]);
    assert_eq!(on(fill(0, 0), read(1, 0)), [(2, Kind::ReadAfterWrite, Some(1))]);
    let write_after_read =
        [alloc(0), fill(0, 0), Step::SyncContext, read(0, 0), read(1, 0), fill(0, 0)];
    assert_eq!(findings(&streams, &write_after_read), [(5, Kind::WriteAfterRead, Some(4))]);
}

#[test]
fn bytes_that_do_not_overlap_do_not_conflict() {
    let halves = [alloc(0), fill_span(0, span(0, 0, 50)), fill_span(1, span(0, 50, 50))];
    assert_eq!(findings(&[NonBlocking; 2], &halves), []);
    let touching = [alloc(0), fill_span(0, span(0, 0, 51)), fill_span(1, span(0, 50, 50))];
    assert_eq!(findings(&[NonBlocking; 2], &touching), [(2, Kind::WriteAfterWrite, Some(1))]);
}

#[test]
fn a_wait_binds_the_record_that_is_the_most_recent_at_the_call() {
    let late = [alloc(0), record(0, 0), fill(0, 0), wait(1, 0), fill(1, 0)];
    assert_eq!(findings(&[NonBlocking; 2], &late), [(4, Kind::WriteAfterWrite, Some(2))]);
    let recorded_again = [alloc(0), fill(0, 0), record(0, 0), wait(1, 0), record(0, 2), fill(1, 0)];
    assert_eq!(findings(&[NonBlocking; 3], &recorded_again), []);
    let moved = [alloc(0), fill(0, 0), record(0, 0), record(0, 2), wait(1, 0), fill(1, 0)];
    assert_eq!(findings(&[NonBlocking; 3], &moved), [(5, Kind::WriteAfterWrite, Some(1))]);
}

#[test]
fn order_is_transitive_through_streams_and_host() {
    let chain =
        [alloc(0), fill(0, 0), record(0, 0), wait(1, 0), record(1, 1), wait(2, 1), fill(2, 0)];
    assert_eq!(findings(&[NonBlocking; 3], &chain), []);
    let through_host =
        [alloc(0), fill(0, 0), record(0, 0), wait(1, 0), Step::SyncStream(1), fill(2, 0)];
    assert_eq!(findings(&[NonBlocking; 3], &through_host), []);
}

#[test]
fn a_never_recorded_event_orders_nothing() {
    let steps = [alloc(0), fill(0, 0), wait(1, 0), Step::SyncEvent(0), fill(1, 0)];
    assert_eq!(findings(&[NonBlocking; 2], &steps), [(4, Kind::WriteAfterWrite, Some(1))]);
}

#[test]
fn a_query_orders_only_if_it_returned_done() {
    let steps = [alloc(0), fill(0, 0), record(0, 0), Step::QueryEvent(0), fill(1, 0)];
    assert_eq!(findings(&[NonBlocking; 2], &steps), [(4, Kind::WriteAfterWrite, Some(1))]);
    assert_eq!(findings_with(&[NonBlocking; 2], &steps, |step| step == 3), []);
}

#[test]
fn the_legacy_stream_orders_with_blocking_streams_only() {
    let steps = [alloc(0), fill(1, 0), fill(0, 0), fill(2, 0)];
    assert_eq!(findings(&[Legacy, Blocking, Blocking], &steps), []);
    assert_eq!(
        findings(&[Legacy, NonBlocking, Blocking], &steps),
        [(2, Kind::WriteAfterWrite, Some(1)), (3, Kind::WriteAfterWrite, Some(1))]
    );
    let without_legacy_work = [alloc(0), fill(1, 0), fill(2, 0)];
    assert_eq!(
        findings(&[Legacy, Blocking, Blocking], &without_legacy_work),
        [(2, Kind::WriteAfterWrite, Some(1))]
    );
}

#[test]
fn a_record_on_the_legacy_stream_counts_as_work_and_a_wait_for_nothing_does_not() {
    let recorded = [alloc(0), fill(1, 0), record(0, 0), fill(2, 0)];
    assert_eq!(findings(&[Legacy, Blocking, Blocking], &recorded), []);
    let waited = [alloc(0), fill(1, 0), wait(0, 0), fill(2, 0)];
    assert_eq!(
        findings(&[Legacy, Blocking, Blocking], &waited),
        [(3, Kind::WriteAfterWrite, Some(1))]
    );
}

#[test]
fn synchronising_the_legacy_stream_waits_for_blocking_streams_and_not_the_other_way_round() {
    let legacy = [alloc(0), fill(1, 0), Step::SyncStream(0), fill(2, 0)];
    assert_eq!(findings(&[Legacy, Blocking, NonBlocking], &legacy), []);
    let blocking = [alloc(0), fill(0, 0), Step::SyncStream(1), fill(2, 0)];
    assert_eq!(
        findings(&[Legacy, Blocking, NonBlocking], &blocking),
        [(3, Kind::WriteAfterWrite, Some(1))]
    );
}

#[test]
fn pageable_downloads_make_the_host_wait_and_pinned_ones_do_not() {
    let download = |host| Step::Download { stream: 0, src: span(0, 0, 100), host };
    let steps = |host| [alloc(0), fill(0, 0), download(host), fill(1, 0)];
    assert_eq!(findings(&[NonBlocking; 2], &steps(Host::Pageable)), []);
    assert_eq!(
        findings(&[NonBlocking; 2], &steps(Host::Pinned)),
        [(3, Kind::WriteAfterWrite, Some(1)), (3, Kind::WriteAfterRead, Some(2))]
    );
}

#[test]
fn an_allocation_is_a_write_on_its_stream() {
    let steps = [alloc_on(0, 0), fill(1, 0)];
    assert_eq!(findings(&[NonBlocking; 2], &steps), [(1, Kind::UseBeforeAllocation, Some(0))]);
    assert_eq!(findings(&[NonBlocking; 2], &[alloc(0), fill(1, 0)]), []);
}

#[test]
fn cumemfree_waits_for_the_device_and_a_free_on_a_stream_does_not() {
    assert_eq!(findings(&[NonBlocking], &[alloc(0), fill(0, 0), free(0)]), []);
    let other_stream = [alloc_on(0, 0), fill(0, 0), free_on(0, 1)];
    let found = findings(&[NonBlocking; 2], &other_stream);
    assert!(found.contains(&(2, Kind::FreeBeforeUse, Some(1))), "{found:?}");
    let pool_memory = [alloc_on(0, 0), fill(0, 0), free(0)];
    let found = findings(&[NonBlocking], &pool_memory);
    assert!(found.contains(&(2, Kind::FreeBeforeUse, Some(1))), "{found:?}");
    let waited = [alloc_on(0, 0), fill(0, 0), Step::SyncStream(0), free(0)];
    assert_eq!(findings(&[NonBlocking], &waited), []);
}

#[test]
fn cumemfree_orders_what_comes_after_it() {
    let steps = [alloc(0), alloc(1), fill(0, 0), free(1), fill(1, 0)];
    assert_eq!(findings(&[NonBlocking; 2], &steps), []);
}

#[test]
fn freed_memory_may_not_be_touched_or_freed_again() {
    let one = [NonBlocking];
    let used = [alloc_on(0, 0), free_on(0, 0), fill(0, 0)];
    assert_eq!(findings(&one, &used), [(2, Kind::UseAfterFree, Some(1))]);
    let twice = [alloc_on(0, 0), free_on(0, 0), free_on(0, 0)];
    assert_eq!(findings(&one, &twice), [(2, Kind::DoubleFree, Some(1))]);
    let inside = [alloc(0), Step::Free { buf: 0, skew: 1, how: How::Sync }];
    assert_eq!(findings(&one, &inside), [(1, Kind::UnknownFree, None)]);
}

#[test]
fn reads_need_every_byte_written_and_accesses_stay_inside() {
    let one = [NonBlocking];
    assert_eq!(findings(&one, &[alloc(0), read(0, 0)]), [(1, Kind::Uninitialised, Some(0))]);
    let almost = [alloc(0), fill_span(0, span(0, 0, 99)), read(0, 0)];
    assert_eq!(findings(&one, &almost), [(2, Kind::Uninitialised, Some(0))]);
    let over = [alloc(0), fill_span(0, span(0, 0, 101))];
    assert_eq!(findings(&one, &over), [(1, Kind::OutOfBounds, Some(0))]);
}

#[test]
fn a_second_reader_does_not_hide_the_first() {
    let steps = [
        alloc(0),
        fill(0, 0),
        Step::SyncContext,
        read(0, 0),
        read(1, 0),
        record(0, 1),
        wait(2, 0),
        fill(2, 0),
    ];
    assert_eq!(findings(&[NonBlocking; 3], &steps), [(7, Kind::WriteAfterRead, Some(3))]);
}

#[test]
fn programs_that_are_correct_by_construction_have_no_finding() {
    for seed in 0..300 {
        let program = generate::correct(seed);
        let found = findings_of(&program);
        assert!(found.is_empty(), "{program}{found:?}");
    }
}

#[test]
fn about_half_of_the_mixed_programs_are_racy() {
    let programs = 1000;
    let racy = (0..programs).filter(|&seed| !findings_of(&generate::any(seed)).is_empty()).count();
    assert!((350..=650).contains(&racy), "{racy} of {programs}");
}

#[test]
fn the_mix_reaches_every_kind_of_finding() {
    let mut kinds: Vec<Kind> = (0..2000)
        .flat_map(|seed| findings_of(&generate::any(seed)))
        .map(|finding| finding.kind)
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds.len(), 10, "{kinds:?}");
}

/// The findings of a generated program with addresses that are never reused.
fn findings_of(program: &Program) -> Vec<oracle::Finding> {
    let outcomes: Vec<Outcome> = program
        .steps
        .iter()
        .map(|step| Outcome {
            address: match step {
                Step::Alloc { buf, .. } => Some((*buf as u64 + 1) << 20),
                _ => None,
            },
            ..Outcome::default()
        })
        .collect();
    oracle::judge(program, &outcomes).findings
}
