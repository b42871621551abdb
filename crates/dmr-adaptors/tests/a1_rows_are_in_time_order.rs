//! A1: the rows of all threads stand in time order, and a free stands before whatever takes its
//! address over.

#![cfg(feature = "logging")]

mod a1;

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use a1::{Recycler, SinkFn, check_order, churn, rows};
use dmr_adaptors::logging::{
    BackgroundConfig, BackgroundSink, CsvSink, InMemorySink, LogRecord, LoggingLayer,
    LoggingResource, LoggingSink,
};
use dmr_adaptors::{ResourceBuilder, ResourceLayer};
use dmr_core::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    ResourceResult, StreamId, StreamPoolId, Usage,
};

const THREADS: usize = 4;
const ROUNDS: usize = 20_000;

/// Each thread allocates, passes the block to the next thread, and frees what it is passed. Yields
/// now and then, so that threads are interrupted in the middle of calls too.
fn pass_blocks_around(resource: &dyn DeviceMemoryResource, stream: StreamId) {
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..THREADS).map(|_| mpsc::sync_channel::<DeviceBlock>(8)).unzip();
    std::thread::scope(|scope| {
        for (at, receiver) in receivers.into_iter().enumerate() {
            let next = senders[(at + 1) % THREADS].clone();
            scope.spawn(move || {
                let mut received = 0;
                for round in 0..ROUNDS {
                    let mut block = resource.allocate(64, stream, AllocTag::new("passed")).unwrap();
                    while let Err(full) = next.try_send(block) {
                        let mpsc::TrySendError::Full(back) = full else { unreachable!() };
                        block = back;
                        if let Ok(passed) = receiver.try_recv() {
                            resource.deallocate(passed).unwrap();
                            received += 1;
                        }
                        std::thread::yield_now();
                    }
                    if let Ok(passed) = receiver.try_recv() {
                        resource.deallocate(passed).unwrap();
                        received += 1;
                    }
                    if round % 64 == 0 {
                        churn(resource, stream, 3);
                        std::thread::yield_now();
                    }
                }
                drop(next);
                for passed in receiver.iter().take(ROUNDS - received) {
                    resource.deallocate(passed).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_file_of_four_threads_that_pass_blocks_around_is_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let base = Recycler::new();
    let stream = base.stream(1);
    let resource = LoggingResource::new(base, Arc::new(CsvSink::create(&path).unwrap()));
    pass_blocks_around(&resource, stream);
    assert_eq!(resource.dropped_records(), 0);
    drop(resource);
    let rows = rows(&path);
    assert!(rows.len() >= 2 * THREADS * ROUNDS);
    assert_eq!(check_order(&rows), 0);
}

#[test]
fn records_in_memory_are_in_order_too() {
    let (base, sink) = (Recycler::new(), Arc::new(InMemorySink::new()));
    let stream = base.stream(1);
    let resource = LoggingLayer::new(sink.clone()).layer(base);
    pass_blocks_around(&resource, stream);
    assert_eq!(check_order(&sink.records()), 0);
}

/// Both layers write the same addresses, so only times can be checked.
#[test]
fn a_call_inside_a_call_does_not_turn_the_time_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let sink = Arc::new(CsvSink::create(&path).unwrap());
    let layer = LoggingLayer::new(sink);
    let base = Recycler::new();
    let stream = base.stream(1);
    let resource = ResourceBuilder::new(base).layer(layer.clone()).layer(layer).build();
    pass_blocks_around(&resource, stream);
    drop(resource);
    let rows = rows(&path);
    assert!(rows.len() >= 4 * THREADS * ROUNDS);
    assert!(rows.is_sorted_by_key(|row| row.time_ns));
}

type Times = Arc<Mutex<Vec<u64>>>;

/// A sink that keeps the times of its rows; `on` is called with the number of each.
fn times_of_rows<F: Fn(usize) + Send + Sync>(on: F) -> (Times, impl LoggingSink + use<F>) {
    let times = Times::default();
    let kept = Arc::clone(&times);
    let sink = SinkFn(move |row: &LogRecord| {
        let mut kept = kept.lock().unwrap();
        on(kept.len());
        kept.push(row.time_ns);
        Ok(())
    });
    (times, sink)
}

fn logged_in_rings_of(records: usize, sink: impl LoggingSink + 'static) -> LoggingLayer {
    let config = BackgroundConfig::new().with_ring_records(records);
    LoggingLayer::new(Arc::new(BackgroundSink::new(sink, config).unwrap()))
}

/// How many of so many rows stand behind one of a later time.
fn late_rows(times: &Times, rows: usize) -> usize {
    let times = times.lock().unwrap();
    assert_eq!(times.len(), rows);
    times.windows(2).filter(|pair| pair[0] > pair[1]).count()
}

/// The threads whose rings are full have been in their calls for long when it goes on.
#[test]
fn a_sink_that_stops_for_a_while_does_not_turn_the_time_back() {
    let stops = |row: usize| {
        if row % 500 == 250 {
            std::thread::sleep(Duration::from_millis(150));
        }
    };
    for layers in [1, 3] {
        let (times, inner) = times_of_rows(stops);
        let layer = logged_in_rings_of(32, inner);
        let base = Recycler::new();
        let stream = base.stream(1);
        let mut resource: Arc<dyn DeviceMemoryResource> = Arc::new(base);
        for _ in 0..layers {
            resource = Arc::new(layer.layer(resource));
        }
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| churn(&resource, stream, 250))));
        });
        drop((resource, layer));
        assert_eq!(late_rows(&times, layers * 2000), 0, "{layers} layers");
    }
}

/// Their rows fill the ring before that of the call can be pushed.
#[test]
fn a_call_waits_for_no_room_because_of_many_calls_inside_it() {
    let (times, inner) = times_of_rows(|_| ());
    let layer = logged_in_rings_of(4, inner);
    let logged = layer.layer(Recycler::new());
    let inside = logged.get_ref().stream(1);
    let outer = layer.layer(FreeAnd::new(|| churn(&logged, inside, 100)));
    let stream = outer.get_ref().inner.stream(1);
    let start = Instant::now();
    churn(&outer, stream, 1);
    drop(outer);
    drop((logged, layer));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(late_rows(&times, 202), 0);
}

/// The row of a call is pushed after those of the calls inside it, and may still be in the ring when
/// those have been taken out.
#[test]
fn a_call_inside_a_call_does_not_turn_the_time_back_however_small_the_rings() {
    for ring_records in [1, 2, 3, 5, 8] {
        let (times, inner) = times_of_rows(|_| ());
        let base = Recycler::new();
        let stream = base.stream(1);
        let layer = logged_in_rings_of(ring_records, inner);
        let layers = ResourceBuilder::new(base).layer(layer.clone()).layer(layer.clone());
        let resource = layers.layer(layer).build();
        churn(&resource, stream, 50);
        drop(resource);
        assert_eq!(late_rows(&times, 300), 0, "with rings of {ring_records}");
    }
}

#[test]
fn a_free_that_has_not_returned_still_stands_before_what_takes_its_address_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let resource = LoggingResource::new(
        FreeAnd::new(|| std::thread::sleep(Duration::from_millis(30))),
        Arc::new(CsvSink::create(&path).unwrap()),
    );
    let stream = resource.get_ref().inner.stream(1);
    let block = resource.allocate(64, stream, AllocTag::UNTAGGED).unwrap();
    let ptr = block.ptr();
    let taken = std::thread::scope(|scope| {
        scope.spawn(|| resource.deallocate(block).unwrap());
        std::thread::sleep(Duration::from_millis(10));
        let taken = resource.allocate(64, stream, AllocTag::UNTAGGED).unwrap();
        resource.flush().unwrap();
        assert_eq!(rows(&path).len(), 3, "the flush has waited for the free");
        taken
    });
    assert_eq!(taken.ptr(), ptr);
    assert_eq!(check_order(&rows(&path)), 1);
    drop(taken);
}

#[test]
fn a_flush_does_not_wait_for_a_free_that_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let sink = Arc::new(CsvSink::create(&path).unwrap());
    let resource = LoggingResource::new(
        FreeAnd::new(|| std::thread::sleep(Duration::from_millis(600))),
        sink.clone(),
    );
    let stream = resource.get_ref().inner.stream(1);
    let block = resource.allocate(64, stream, AllocTag::UNTAGGED).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| resource.deallocate(block).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        let taken = resource.allocate(64, stream, AllocTag::UNTAGGED).unwrap();
        let start = Instant::now();
        resource.flush().unwrap();
        let waited = start.elapsed();
        assert!(waited < Duration::from_millis(400), "{waited:?}");
        assert_eq!(rows(&path).len(), 2, "what was recorded before the flush");
        drop(taken);
    });
    sink.flush().unwrap();
    assert_eq!(rows(&path).len(), 3);
}

/// Gives memory back at once, and does something more before it returns.
struct FreeAnd<F> {
    inner: Recycler,
    then: F,
}

impl<F> FreeAnd<F> {
    fn new(then: F) -> Self {
        Self { inner: Recycler::new(), then }
    }
}

impl<F> std::fmt::Debug for FreeAnd<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FreeAnd")
    }
}

impl<F: Fn() + Send + Sync> DeviceMemoryResource for FreeAnd<F> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        self.inner.allocate(bytes, stream, tag)
    }
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let answer = self.inner.deallocate(block);
        (self.then)();
        answer
    }
    fn is_retired(&self, block: BlockId) -> bool {
        self.inner.is_retired(block)
    }
    fn device_ordinal(&self) -> usize {
        self.inner.device_ordinal()
    }
    fn stream_pool(&self) -> StreamPoolId {
        self.inner.stream_pool()
    }
    fn usage(&self) -> Usage {
        self.inner.usage()
    }
    fn try_reap(&self) -> ResourceResult<u64> {
        self.inner.try_reap()
    }
    fn reap_pending(&self) -> ResourceResult<u64> {
        self.inner.reap_pending()
    }
}
