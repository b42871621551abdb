//! The event that covers a use, and the time at which an event is recorded again.

use super::*;

type TestTimeline = Timeline<usize>;

/// Numbers a use; returns its number, and the event to record for it, which is made if there is
/// none. The driver's event is a count of those that were made.
fn begin<'t>(timeline: &'t TestTimeline, made: &mut usize) -> (u64, &'t StreamEvent<usize>) {
    let mut events = timeline.lock();
    let seq = timeline.number(&mut events);
    let event = timeline.reuse(&mut events, seq);
    drop(events);
    let event = event.unwrap_or_else(|| {
        *made += 1;
        timeline.add(0, seq, *made)
    });
    (seq, event)
}

fn record(timeline: &TestTimeline, made: &mut usize) -> u64 {
    let (seq, event) = begin(timeline, made);
    event.set_recorded();
    seq
}

/// Returns the number of the event that covers a use; `None` if the use is done.
fn covered_by(timeline: &TestTimeline, seq: u64) -> Option<u64> {
    match timeline.cover(seq) {
        Cover::Done => None,
        Cover::Event(event) => Some(event.seq()),
        Cover::Unrecorded => panic!("nothing covers use {seq}"),
    }
}

#[test]
fn a_use_is_covered_by_the_first_event_that_was_recorded_after_it() {
    let timeline = TestTimeline::new();
    let mut made = 0;
    let seqs = [0; 3].map(|_| record(&timeline, &mut made));
    for seq in seqs {
        assert_eq!(covered_by(&timeline, seq), Some(seq));
        // An allocation before it.
        assert_eq!(covered_by(&timeline, seq - 1), Some(seq));
    }
    assert!(matches!(timeline.cover(timeline.submitted()), Cover::Unrecorded));
}

#[test]
fn an_event_that_is_not_recorded_yet_covers_nothing() {
    let timeline = TestTimeline::new();
    let mut made = 0;
    let (early, event) = begin(&timeline, &mut made);
    let late = record(&timeline, &mut made);
    assert_eq!(covered_by(&timeline, early), Some(late));
    event.set_recorded();
    assert_eq!(covered_by(&timeline, early), Some(early));
}

#[test]
fn an_event_that_a_late_thread_has_made_is_found_by_its_number() {
    let timeline = TestTimeline::new();
    let mut made = 0;
    let first = timeline.number(&mut timeline.lock());
    let second = record(&timeline, &mut made);
    timeline.add(0, first, 7).set_recorded();
    assert_eq!(covered_by(&timeline, first), Some(first));
    assert_eq!(covered_by(&timeline, second), Some(second));
}

#[test]
fn an_event_is_recorded_again_once_it_is_done_and_no_thread_uses_it() {
    let timeline = TestTimeline::new();
    let mut made = 0;
    let seq = record(&timeline, &mut made);
    record(&timeline, &mut made);
    assert_eq!(made, 2, "the first is not done");
    let Cover::Event(held) = timeline.cover(seq) else { panic!("recorded") };
    timeline.raise_done(seq);
    record(&timeline, &mut made);
    assert_eq!(made, 3, "the first is about to be waited for");
    assert_eq!(held.seq(), seq);
    drop(held);
    let again = record(&timeline, &mut made);
    assert_eq!(made, 3);
    assert_eq!(covered_by(&timeline, seq), None);
    assert_eq!(covered_by(&timeline, again), Some(again));
}

#[test]
fn a_thread_that_is_held_at_its_record_does_not_keep_later_events_from_being_used_again() {
    let timeline = TestTimeline::new();
    let mut made = 0;
    let (_, held) = begin(&timeline, &mut made);
    for _ in 0..100 {
        let seq = record(&timeline, &mut made);
        timeline.raise_done(seq);
    }
    assert_eq!(made, 2);
    assert_eq!(held.seq(), 2);
}

#[test]
fn an_event_whose_record_has_failed_covers_nothing_and_serves_again() {
    let timeline = TestTimeline::new();
    let mut made = 0;
    let (seq, event) = begin(&timeline, &mut made);
    timeline.discard(event);
    assert!(matches!(timeline.cover(seq), Cover::Unrecorded));
    let late = record(&timeline, &mut made);
    assert_eq!((made, covered_by(&timeline, seq)), (1, Some(late)));
}

#[test]
fn one_of_sixty_four_events_is_queried() {
    let timeline = TestTimeline::new();
    let mut made = 0;
    let mut asked = Vec::new();
    for _ in 0..4 * EVENTS_PER_QUERY {
        record(&timeline, &mut made);
        asked.extend(timeline.event_to_query().map(|event| event.seq()));
    }
    assert_eq!(asked.len(), 4);
    // The one in the middle: of 64 events it is the 33rd.
    assert_eq!(asked[0], 2 * 33);
}

#[test]
fn no_more_events_are_made_than_are_in_flight_and_twice_those_between_two_queries() {
    let timeline = TestTimeline::new();
    let mut made = 0;
    const IN_FLIGHT: u64 = 100;
    for _ in 0..10_000 {
        let mut events = timeline.lock();
        let seq = timeline.number(&mut events);
        let mut event = timeline.reuse(&mut events, seq);
        drop(events);
        if event.is_none()
            && let Some(asked) = timeline.event_to_query()
            && asked.seq() + 2 * IN_FLIGHT <= seq
        {
            timeline.raise_done(asked.seq());
            drop(asked);
            event = timeline.reuse(&mut timeline.lock(), seq);
        }
        let event = event.unwrap_or_else(|| {
            made += 1;
            timeline.add(0, seq, made)
        });
        event.set_recorded();
    }
    assert!(made <= 2 * IN_FLIGHT as usize + 2 * EVENTS_PER_QUERY, "{made}");
}
