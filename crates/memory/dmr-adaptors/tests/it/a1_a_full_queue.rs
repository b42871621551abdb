//! A1: a call whose queue is full waits and loses nothing, or drops its record, counts it, and is
//! not slowed down.

#![cfg(feature = "logging")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::a1::{Recycler, SinkFn, check_order, churn};
use dmr_adaptors::logging::{
    AllocationRecord, BackgroundConfig, BackgroundSink, InMemorySink, LoggingResource, LoggingSink,
    SinkError, WhenFull,
};

const SMALL: BackgroundConfig = BackgroundConfig::new().with_queue_records(16);

fn logged(sink: impl LoggingSink + 'static) -> LoggingResource<Recycler> {
    LoggingResource::new(Recycler::new(), Arc::new(sink))
}

#[test]
fn a_thread_that_blocks_loses_nothing() {
    let kept = Arc::new(InMemorySink::new());
    let slow = AtomicU64::new(0);
    let keeps = Arc::clone(&kept);
    let inner = SinkFn(move |record: &AllocationRecord| {
        if slow.fetch_add(1, Ordering::Relaxed).is_multiple_of(500) {
            std::thread::sleep(Duration::from_millis(2));
        }
        keeps.record(record)
    });
    let resource = logged(BackgroundSink::new(inner, SMALL).unwrap());
    let stream = resource.upstream().stream(1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| churn(&resource, stream, 2000));
        }
    });
    resource.flush().unwrap();
    assert_eq!((kept.len(), resource.dropped_records()), (16_000, 0));
    assert_eq!(check_order(&kept.records()), 0);
}

/// The sink stands still, so only the queue can make a call wait.
#[test]
fn a_thread_that_drops_is_not_slowed_down_by_a_sink_that_stands_still() {
    let stands_still = Arc::new(AtomicBool::new(true));
    let stop = Arc::clone(&stands_still);
    let taken = Arc::new(AtomicU64::new(0));
    let takes = Arc::clone(&taken);
    let inner = SinkFn(move |_: &AllocationRecord| {
        while stop.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        takes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let config = SMALL.with_when_full(WhenFull::Drop);
    let resource = logged(BackgroundSink::new(inner, config).unwrap());
    let stream = resource.upstream().stream(1);
    const ROUNDS: usize = 100_000;
    let start = Instant::now();
    churn(&resource, stream, ROUNDS);
    let each = start.elapsed() / (2 * ROUNDS) as u32;
    stands_still.store(false, Ordering::Release);
    // A fiftieth of what the sink takes for one record; on an idle machine it is 50 ns.
    assert!(each < Duration::from_micros(20), "{each:?}");
    resource.flush().unwrap();
    let taken = taken.load(Ordering::Relaxed);
    let dropped = resource.dropped_records();
    assert_eq!(taken + dropped, 2 * ROUNDS as u64, "{taken} taken, {dropped} dropped");
    assert!(dropped > 100_000, "{dropped}");
}

/// The sink behind the queues allocates from the resource that it logs: its own thread cannot wait
/// for itself.
#[test]
fn the_writing_thread_never_waits_for_itself() {
    let resource = Arc::new(std::sync::OnceLock::<LoggingResource<Recycler>>::new());
    let own = Arc::clone(&resource);
    let inner = SinkFn(move |record: &AllocationRecord| {
        if let Some(resource) = own.get().filter(|_| record.tag.name() == "churn") {
            let stream = resource.upstream().stream(1);
            for _ in 0..40 {
                resource.allocate(0, stream, dmr_core::AllocTag::new("own")).unwrap_err();
            }
            assert!(matches!(resource.flush(), Err(SinkError::Closed)));
        }
        Ok(())
    });
    use dmr_core::DeviceMemoryResource;
    resource.set(logged(BackgroundSink::new(inner, SMALL).unwrap())).ok().unwrap();
    let resource = resource.get().unwrap();
    churn(resource, resource.upstream().stream(1), 100);
    resource.flush().unwrap();
    assert!(resource.dropped_records() > 0);
}
