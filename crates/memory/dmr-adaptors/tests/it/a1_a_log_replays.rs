//! A1: the log of a run on several threads and streams replays, without an address that is live
//! twice and without a free that has no allocation.

#![cfg(feature = "logging")]

use std::path::Path;
use std::sync::{Arc, mpsc};

use crate::a1::{check_order, rows};
use dmr_adaptors::ResourceBuilder;
use dmr_adaptors::logging::{CsvSink, LoggingLayer, with_query};
use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;
use dmr_trace::{Replay, ReplayOptions, TraceReader};

const THREADS: usize = 4;
const ROUNDS: usize = 300;

/// Each thread allocates on a stream of its own, and frees blocks of the thread before.
fn run(rig: &Rig, resource: &dyn DeviceMemoryResource) {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
    let leases: Vec<_> = (0..THREADS).map(|_| rig.stream()).collect();
    std::thread::scope(|scope| {
        for (at, receiver) in receivers.into_iter().enumerate() {
            let next = senders[(at + 1) % THREADS].clone();
            let stream = leases[at].id();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let bytes = 1 + (round * 7919 + at) % 100_000;
                    let block = with_query(at as u64, || {
                        resource.allocate(bytes, stream, AllocTag::new("passed, on"))
                    });
                    next.send(block.unwrap()).unwrap();
                    if round % 16 == 0 {
                        resource.try_reap().unwrap();
                    }
                    if round % 3 != 0 {
                        resource.deallocate(receiver.recv().unwrap()).unwrap();
                    }
                }
                drop(next);
                let left = ROUNDS.div_ceil(3);
                receiver.iter().take(left).for_each(|block| {
                    resource.deallocate(block).unwrap();
                });
            });
        }
    });
    resource.reap_pending().unwrap();
}

fn replays(path: &Path, logged: usize) {
    let rows = rows(path);
    assert!(rows.len() > logged);
    assert_eq!(check_order(&rows), 0);

    let rig = Rig::new();
    let backend = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let leases: Vec<_> = (0..THREADS).map(|_| rig.stream()).collect();
    let mut streams: Vec<_> = leases.iter().map(|lease| lease.id()).collect();
    let summary = Replay::new(&backend)
        .options(ReplayOptions::new().strict(true))
        .verify(&**rig.ops())
        .run(TraceReader::open(path).unwrap(), &mut streams, &mut ())
        .unwrap();
    assert!(summary.passed(), "{:?}", summary.verdict());
    assert_eq!((summary.allocs, summary.frees), ((logged / 2) as u64, (logged / 2) as u64));
    assert_eq!((summary.reallocated.count, summary.failed_rows), (0, 0));
    assert_eq!(summary.trace_streams, THREADS as u64);
    drop((backend, leases));
    rig.assert_clean();
}

#[test]
fn of_the_async_backend() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv.gz");
    let rig = Rig::new();
    let backend = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let sink = CsvSink::create(&path).unwrap();
    let layer = LoggingLayer::new(Arc::new(sink));
    let resource = ResourceBuilder::new(backend).layer(layer).build();
    run(&rig, &resource);
    assert_eq!((resource.dropped_records(), resource.bytes_outstanding()), (0, 0));
    drop(resource);
    rig.assert_clean();
    replays(&path, 2 * THREADS * ROUNDS);
}

#[test]
fn of_the_direct_backend() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let rig = Rig::new();
    let backend = DirectCudaResource::new(Arc::clone(rig.streams()));
    let layer = LoggingLayer::new(Arc::new(CsvSink::create(&path).unwrap()));
    let resource = ResourceBuilder::new(backend).layer(layer).build();
    run(&rig, &resource);
    resource.flush().unwrap();
    drop(resource);
    rig.assert_clean();
    replays(&path, 2 * THREADS * ROUNDS);
}

mod conformance {
    use super::*;
    use dmr_adaptors::ResourceLayer;
    use dmr_adaptors::logging::{InMemorySink, LoggingResource};
    use dmr_testkit::ResourceHarness;

    fn harness() -> ResourceHarness<LoggingResource<AsyncCudaResource>> {
        let layer = LoggingLayer::new(Arc::new(InMemorySink::new()));
        Rig::new().harness(|rig| {
            let streams = Arc::clone(rig.streams());
            layer.layer(AsyncCudaResource::new(streams, AsyncConfig::new()).unwrap())
        })
    }

    dmr_core::conformance_tests!(harness());
}
