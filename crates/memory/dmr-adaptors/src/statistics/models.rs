//! Threads that count, under every order of their steps.

use std::sync::Arc;

use dmr_core::AllocTag;
use loom::thread;

use super::counts::{Call, Counts, Event};
use super::report::{Counter, Statistics};

const TAG: AllocTag = AllocTag::new("model");

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn count(counts: &Counts, event: Event) {
    counts.count(Call { event, tag: TAG, stream: None });
}

/// Each counter agrees with the others, as at one instant.
fn assert_is_of_one_instant(statistics: &Statistics) {
    let Statistics { bytes, allocations, frees, .. } = statistics;
    assert_eq!(bytes.current, 10 * allocations.current);
    assert_eq!(allocations.total, allocations.current + frees);
    assert!(bytes.peak >= bytes.current && allocations.peak >= allocations.current);
    for of_tag in &statistics.by_tag {
        assert_eq!(
            (of_tag.bytes, of_tag.allocations, of_tag.frees),
            (*bytes, *allocations, *frees)
        );
    }
}

/// Counts `blocks` blocks of ten bytes, and frees them.
fn allocate_and_free(counts: &Counts, blocks: usize) {
    (0..blocks).for_each(|_| count(counts, Event::Allocated(10)));
    (0..blocks).for_each(|_| count(counts, Event::Freed(10)));
}

/// All of the room below the peak is leased when both threads need it.
#[test]
fn loom_a_peak_is_exact_and_a_snapshot_is_of_one_instant() {
    check(|| {
        let counts = Arc::new(Counts::default());
        allocate_and_free(&counts, 3);
        let other = {
            let counts = Arc::clone(&counts);
            thread::spawn(move || {
                allocate_and_free(&counts, 1);
                count(&counts, Event::Allocated(10));
            })
        };
        count(&counts, Event::Allocated(10));
        assert_is_of_one_instant(&counts.statistics());
        count(&counts, Event::Allocated(10));
        other.join().expect("a thread");
        let reached = counts.statistics();
        assert_eq!(reached.bytes, Counter { current: 30, peak: 30, total: 70 });
        assert_eq!(reached.allocations, Counter { current: 3, peak: 3, total: 7 });
        assert_is_of_one_instant(&reached);
        count(&counts, Event::Freed(10));
        count(&counts, Event::Allocated(25));
        let exceeded = counts.statistics();
        assert_eq!(exceeded.bytes, Counter { current: 45, peak: 45, total: 95 });
        assert_eq!(exceeded.by_tag[0].bytes, exceeded.bytes);
    });
}

/// Another thread holds a second block for a moment.
#[test]
fn loom_peaks_are_reset_at_one_instant() {
    check(|| {
        let counts = Arc::new(Counts::default());
        allocate_and_free(&counts, 4);
        count(&counts, Event::Allocated(10));
        let other = {
            let counts = Arc::clone(&counts);
            thread::spawn(move || {
                allocate_and_free(&counts, 1);
                allocate_and_free(&counts, 1);
            })
        };
        counts.reset_peaks();
        other.join().expect("a thread");
        let end = counts.statistics();
        // The other thread had or allocated its block after the reset, or not.
        assert!([1, 2].contains(&end.allocations.peak));
        assert_eq!(end.bytes, Counter { current: 10, peak: 10 * end.allocations.peak, total: 70 });
        assert_is_of_one_instant(&end);
    });
}
