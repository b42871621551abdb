//! A1: sorted by their order, the rows of all threads are in time order, and a free stands before
//! the allocation that reuses its address. Rows are written as they come.

#![cfg(feature = "logging")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

use crate::a1::{Recycler, check_order, churn, rows};
use dmr_adaptors::logging::{
    BackgroundConfig, CsvSink, InMemorySink, LoggingLayer, LoggingResource, RecordAction,
};
use dmr_adaptors::{ResourceBuilder, ResourceLayer};
use dmr_core::conformance::Harness;
use dmr_core::{
    AllocTag, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceResult,
    StreamId,
};
use dmr_fake::FakeHarness;
use dmr_trace::{Replay, ReplayOptions, TraceReader};

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

/// Returns the orders of a log file, as they stand in it.
fn written_orders(path: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().skip(1).map(|row| row.split(',').next().unwrap().parse().unwrap()).collect()
}

fn logged_to(path: &Path) -> LoggingResource<Recycler> {
    LoggingResource::new(Recycler::new(), Arc::new(CsvSink::create(path).unwrap()))
}

#[test]
fn a_file_of_four_threads_that_pass_blocks_around_sorts_into_the_order_of_the_calls() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let resource = logged_to(&path);
    let stream = resource.upstream().stream(1);
    pass_blocks_around(&resource, stream);
    assert_eq!(resource.dropped_records(), 0);
    drop(resource);
    let rows = rows(&path);
    assert!(rows.len() >= 2 * THREADS * ROUNDS);
    assert_eq!(check_order(&rows), 0);
    let written = written_orders(&path);
    assert_eq!(written.len(), rows.len());
    assert!(!written.is_sorted(), "the rows were held back to be sorted while they were written");
}

/// By address, as a reader of a log without generations pairs them.
#[test]
fn a_replay_of_that_file_finds_no_overlap_and_no_free_without_its_allocation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let by_address = folder.path().join("rmm.csv");
    let resource = logged_to(&path);
    let stream = resource.upstream().stream(1);
    pass_blocks_around(&resource, stream);
    drop(resource);
    let file = std::io::BufWriter::new(std::fs::File::create(&by_address).unwrap());
    let mut rmm = dmr_trace::RecordWriter::with_format(file, dmr_trace::TraceFormat::Rmm).unwrap();
    for row in rows(&path) {
        rmm.write(&row).unwrap();
    }
    rmm.flush().unwrap();
    for path in [path, by_address] {
        let harness = FakeHarness::new(true);
        let [x, y] = harness.streams();
        let summary = Replay::new(harness.resource())
            .options(ReplayOptions::new().strict(true))
            .run(TraceReader::open(&path).unwrap(), &mut vec![x, y], &mut ())
            .unwrap();
        assert!(summary.passed(), "{:?}", summary.verdict());
        assert_eq!((summary.overlaps.count, summary.reallocated.count), (0, 0));
        assert!(summary.allocs >= (THREADS * ROUNDS) as u64);
    }
}

#[test]
fn records_in_memory_are_in_order_too() {
    let base = Recycler::new();
    let sink = Arc::new(InMemorySink::new());
    let stream = base.stream(1);
    let resource = LoggingLayer::new(sink.clone()).layer(base);
    pass_blocks_around(&resource, stream);
    assert_eq!(check_order(&sink.records()), 0);
}

/// Both layers write the same addresses: of each block there are two allocations, then two frees.
#[test]
fn calls_inside_calls_are_in_order_however_small_the_queues() {
    let folder = tempfile::tempdir().unwrap();
    for queue_records in [1, 3, 8192] {
        let path = folder.path().join("log.csv");
        let config = BackgroundConfig::new().with_queue_records(queue_records);
        let layer = LoggingLayer::new(Arc::new(CsvSink::with_config(&path, config).unwrap()));
        let base = Recycler::new();
        let stream = base.stream(1);
        let resource = ResourceBuilder::new(base).layer(layer.clone()).layer(layer).build();
        std::thread::scope(|scope| {
            (0..THREADS).for_each(|_| drop(scope.spawn(|| churn(&resource, stream, 500))));
        });
        drop(resource);
        let rows = rows(&path);
        assert_eq!(rows.len(), THREADS * 2000);
        let mut calls = HashMap::<_, Vec<_>>::new();
        for row in &rows {
            calls.entry(row.ptr).or_default().push((row.generation, row.action));
        }
        for blocks in calls.values().flat_map(|calls| calls.chunks(4)) {
            let actions = blocks.iter().map(|(_, action)| *action).collect::<Vec<_>>();
            use RecordAction::{Allocate, Deallocate};
            assert_eq!(actions, [Allocate, Allocate, Deallocate, Deallocate]);
            assert!(blocks.iter().all(|(generation, _)| *generation == blocks[0].0));
        }
    }
}

/// Their rows fill the queue before that of the call can be pushed.
#[test]
fn many_calls_inside_a_call_fill_the_queue_and_are_all_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let config = BackgroundConfig::new().with_queue_records(4);
    let layer = LoggingLayer::new(Arc::new(CsvSink::with_config(&path, config).unwrap()));
    let logged = layer.layer(Recycler::new());
    let inside = logged.upstream().stream(1);
    let outer = layer.layer(Hooked::new(|| (), || churn(&logged, inside, 100)));
    let stream = outer.upstream().inner.stream(1);
    churn(&outer, stream, 1);
    drop(outer);
    drop((logged, layer));
    let rows = rows(&path);
    assert_eq!(rows.len(), 202);
    let outer_free = rows.iter().position(|row| row.action == RecordAction::Deallocate);
    assert_eq!(outer_free, Some(1), "the free began before the calls inside it");
}

#[test]
fn a_free_that_has_not_returned_delays_no_flush_and_sorts_before_the_reuse_of_its_address() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let soon = BackgroundConfig::new().with_flush_interval(Duration::from_secs(3600));
    let sink = CsvSink::with_config(&path, soon).unwrap();
    // The free returns when the other thread has flushed, or has not for a long time.
    let is_freed = Barrier::new(2);
    let (flushed, returns) = mpsc::channel();
    let returns = Mutex::new(returns);
    let is_late = AtomicBool::new(false);
    let waits = || {
        is_freed.wait();
        let in_time = returns.lock().unwrap().recv_timeout(Duration::from_secs(20));
        is_late.store(in_time.is_err(), Ordering::Relaxed);
    };
    let resource = LoggingResource::new(Hooked::new(|| (), waits), Arc::new(sink));
    let stream = resource.upstream().inner.stream(1);
    let block = resource.allocate(64, stream, AllocTag::UNTAGGED).unwrap();
    let ptr = block.ptr();
    let taken = std::thread::scope(|scope| {
        let frees = scope.spawn(|| resource.deallocate(block).unwrap());
        is_freed.wait();
        let taken = resource.allocate(64, stream, AllocTag::UNTAGGED).unwrap();
        resource.flush().unwrap();
        let rows = rows(&path).len();
        // Received by the free, unless that has returned.
        let _ = flushed.send(());
        frees.join().unwrap();
        assert_eq!(rows, 2, "the rows of the calls that had returned");
        taken
    });
    assert!(!is_late.load(Ordering::Relaxed), "the flush waited for the free");
    assert_eq!(taken.ptr(), ptr);
    resource.flush().unwrap();
    assert_eq!(check_order(&rows(&path)), 1);
    assert!(!written_orders(&path).is_sorted(), "the free is written last");
    drop(taken);
}

/// The allocation begins before the free of the memory that it gets.
#[test]
fn an_allocation_sorts_after_a_free_that_took_place_while_it_waited() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let has_begun = Barrier::new(2);
    let is_freed = Barrier::new(2);
    let allocations = AtomicU64::new(0);
    let waits = || {
        if allocations.fetch_add(1, Ordering::Relaxed) == 1 {
            has_begun.wait();
            is_freed.wait();
        }
    };
    let sink = Arc::new(CsvSink::create(&path).unwrap());
    let resource = LoggingResource::new(Hooked::new(waits, || ()), sink);
    let stream = resource.upstream().inner.stream(1);
    let block = resource.allocate(64, stream, AllocTag::UNTAGGED).unwrap();
    let ptr = block.ptr();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let reuses = resource.allocate(64, stream, AllocTag::UNTAGGED).unwrap();
            assert_eq!(reuses.ptr(), ptr);
        });
        has_begun.wait();
        resource.deallocate(block).unwrap();
        is_freed.wait();
    });
    drop(resource);
    assert_eq!(check_order(&rows(&path)), 1);
}

type Hook<'a> = Box<dyn Fn() + Send + Sync + 'a>;

/// Calls hooks in the middle of its calls: before an address is taken, and after one was freed.
struct Hooked<'a> {
    inner: Recycler,
    before_allocate: Hook<'a>,
    after_free: Hook<'a>,
}

impl<'a> Hooked<'a> {
    fn new(
        before_allocate: impl Fn() + Send + Sync + 'a,
        after_free: impl Fn() + Send + Sync + 'a,
    ) -> Self {
        let before_allocate = Box::new(before_allocate);
        let after_free = Box::new(after_free);
        Self { inner: Recycler::new(), before_allocate, after_free }
    }
}

impl std::fmt::Debug for Hooked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooked")
    }
}

impl DeviceMemoryResource for Hooked<'_> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        (self.before_allocate)();
        self.inner.allocate(bytes, stream, tag)
    }
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let freed = self.inner.deallocate(block);
        (self.after_free)();
        freed
    }

    dmr_core::forward!(
        inner: is_retired, device_ordinal, stream_pool, usage, try_reap, reap_pending,
    );
}
