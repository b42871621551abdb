//! A1: a sink that refuses, panics or is full costs one dropped record, never the call.

#![cfg(feature = "logging")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::a1::{Recycler, SinkFn, churn};
use dmr_adaptors::logging::{
    AllocationRecord, InMemorySink, LoggingResource, LoggingSink, NullSink, SinkError,
};
use dmr_core::{AllocTag, DeviceMemoryResource};

fn logged(sink: Arc<dyn LoggingSink>) -> LoggingResource<Recycler> {
    LoggingResource::new(Recycler::new(), sink)
}

#[test]
fn a_record_that_is_refused_is_dropped_and_counted() {
    let resource = logged(Arc::new(SinkFn(|_: &_| Err(SinkError::other("not today")))));
    churn(&resource, resource.upstream().stream(1), 3);
    resource.allocate(0, resource.upstream().stream(1), AllocTag::UNTAGGED).unwrap_err();
    assert_eq!(resource.try_reap(), Ok(17));
    resource.reap_pending().unwrap_err();
    assert_eq!(resource.dropped_records(), 9);
}

#[test]
fn a_sink_that_panics_costs_one_record_each_time_and_the_call_succeeds() {
    let records = AtomicU64::new(0);
    // Thrown without the hook, which would print; dropping what is thrown panics once more.
    let resource =
        logged(Arc::new(SinkFn(move |_: &_| match records.fetch_add(1, Ordering::Relaxed) {
            1 | 2 => std::panic::resume_unwind(Box::new("broken")),
            3 => std::panic::resume_unwind(Box::new(PanicsWhenDropped)),
            _ => Ok(()),
        })));
    churn(&resource, resource.upstream().stream(1), 3);
    assert_eq!(resource.dropped_records(), 3);
}

#[derive(Debug)]
struct FlushPanics;

impl LoggingSink for FlushPanics {
    fn record(&self, _: &AllocationRecord) -> Result<(), SinkError> {
        Ok(())
    }

    fn flush(&self) -> Result<(), SinkError> {
        std::panic::resume_unwind(Box::new("broken"))
    }
}

#[test]
fn a_sink_that_panics_in_a_flush_fails_the_flush_and_nothing_else() {
    let resource = logged(Arc::new(FlushPanics));
    churn(&resource, resource.upstream().stream(1), 3);
    for _ in 0..2 {
        assert!(matches!(resource.flush(), Err(SinkError::Panicked)));
    }
    churn(&resource, resource.upstream().stream(1), 3);
    assert_eq!(resource.dropped_records(), 0);
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("again"));
    }
}

#[test]
fn a_bound_keeps_the_first_records_and_the_others_count_as_dropped() {
    let sink = Arc::new(InMemorySink::bounded(3));
    let resource = logged(sink.clone());
    churn(&resource, resource.upstream().stream(1), 4);
    assert_eq!((sink.len(), resource.dropped_records()), (3, 5));
    assert_eq!(sink.records()[0].ptr, sink.records()[1].ptr);
    sink.clear();
    churn(&resource, resource.upstream().stream(1), 1);
    assert_eq!((sink.len(), resource.dropped_records()), (2, 5));
}

#[test]
fn a_sink_without_records_takes_everything() {
    let resource = logged(Arc::new(NullSink));
    churn(&resource, resource.upstream().stream(1), 100);
    assert_eq!((resource.dropped_records(), resource.flush().is_ok()), (0, true));
}

/// Memory is freed by the destructors of a thread that ends, too.
#[test]
fn a_thread_that_is_being_torn_down_still_logs() {
    use dmr_adaptors::logging::{BackgroundConfig, BackgroundSink};

    static ENDED: AtomicBool = AtomicBool::new(false);

    struct AtTheEnd(Arc<LoggingResource<Recycler>>);

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            churn(&self.0, self.0.upstream().stream(1), 2);
            ENDED.store(true, Ordering::Release);
        }
    }

    thread_local! {
        static FIRST: std::cell::RefCell<Option<AtTheEnd>> = const { std::cell::RefCell::new(None) };
        static LAST: std::cell::RefCell<Option<AtTheEnd>> = const { std::cell::RefCell::new(None) };
    }

    let kept = Arc::new(InMemorySink::new());
    let sink = BackgroundSink::new(Arc::clone(&kept), BackgroundConfig::new()).unwrap();
    let resource = Arc::new(logged(Arc::new(sink)));
    let theirs = Arc::clone(&resource);
    std::thread::spawn(move || {
        // One destructor runs before those of the log, one after.
        FIRST.set(Some(AtTheEnd(Arc::clone(&theirs))));
        churn(&theirs, theirs.upstream().stream(1), 1);
        LAST.set(Some(AtTheEnd(theirs)));
    })
    .join()
    .unwrap();
    assert!(ENDED.load(Ordering::Acquire));
    resource.flush().unwrap();
    assert_eq!((kept.len(), resource.dropped_records()), (10, 0));
}
