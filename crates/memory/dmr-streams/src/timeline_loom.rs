//! Models of a timeline: what holds in every order of the threads' steps.

use super::*;
use crate::sync::AtomicUsize;

/// The number that the driver's event was last recorded for.
type Model = Timeline<AtomicUsize>;

fn begin(timeline: &Model) -> Option<(u64, &StreamEvent<AtomicUsize>)> {
    let mut events = timeline.lock();
    let seq = timeline.number(&mut events);
    let event = timeline.reuse(&mut events, seq);
    drop(events);
    Some((seq, event?))
}

fn record(seq: u64, event: &StreamEvent<AtomicUsize>) {
    event.driver_event().store(seq as usize, Ordering::Relaxed);
    event.set_recorded();
}

/// U5: an event that a thread is about to wait for is not recorded again; a thread that is too late
/// for the event has nothing to wait for.
#[test]
fn no_event_is_recorded_again_that_a_thread_is_about_to_wait_for() {
    loom::model(|| {
        let timeline = Arc::new(Model::new());
        let seq = timeline.number(&mut timeline.lock());
        record(seq, timeline.add(0, seq, AtomicUsize::new(0)));
        let waiter = {
            let timeline = Arc::clone(&timeline);
            loom::thread::spawn(move || match timeline.cover(seq) {
                Cover::Event(event) => {
                    assert_eq!(event.seq(), seq);
                    assert_eq!(event.driver_event().load(Ordering::Relaxed), seq as usize);
                }
                Cover::Done => assert!(timeline.is_done(seq)),
                Cover::Unrecorded => panic!("it was recorded"),
            })
        };
        timeline.raise_done(seq);
        if let Some((next, event)) = begin(&timeline) {
            record(next, event);
        }
        waiter.join().unwrap();
        timeline.raise_done(timeline.submitted());
        assert!(begin(&timeline).is_some(), "no thread has it any more");
    });
}

/// U4, U5: a wait is for an event that was recorded, with a number that is large enough; two
/// threads that record at the same time have an event each.
#[test]
fn a_wait_is_for_a_recorded_event_that_covers_the_use() {
    loom::model(|| {
        let timeline = Arc::new(Model::new());
        let seq = timeline.number(&mut timeline.lock());
        let first = timeline.add(0, seq, AtomicUsize::new(0));
        let recorder = {
            let timeline = Arc::clone(&timeline);
            loom::thread::spawn(move || {
                let next = timeline.number(&mut timeline.lock());
                record(next, timeline.add(0, next, AtomicUsize::new(0)));
            })
        };
        if let Cover::Event(event) = timeline.cover(seq) {
            assert!(event.seq() > seq);
            assert_eq!(event.driver_event().load(Ordering::Relaxed), event.seq() as usize);
        }
        record(seq, first);
        let Cover::Event(event) = timeline.cover(seq) else { panic!("recorded") };
        assert_eq!(event.seq(), seq);
        recorder.join().unwrap();
    });
}
