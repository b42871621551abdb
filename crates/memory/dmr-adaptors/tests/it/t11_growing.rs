//! T11: a block that grows in place does so through every layer, and each layer counts it.
#![cfg(all(
    feature = "aligned",
    feature = "budget",
    feature = "callbacks",
    feature = "debug-guard",
    feature = "logging",
    feature = "statistics"
))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::scripted::Scripted;
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::aligned::AlignedLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer};
use dmr_adaptors::callbacks::{FailureCallbackLayer, Response};
use dmr_adaptors::guard::DebugGuardLayer;
use dmr_adaptors::logging::{CsvSink, InMemorySink, LoggingLayer};
use dmr_adaptors::statistics::StatisticsLayer;
use dmr_core::conformance::Harness;
use dmr_core::record::RecordAction;
use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError};
use dmr_fake::FakeHarness;
use dmr_trace::{RecordWriter, Replay, ReplayOptions, TraceFormat, TraceReader};

const TAG: AllocTag = AllocTag::new("rows");
const KIB: usize = 1 << 10;

fn failed() -> ResourceError {
    ResourceError::driver("cuMemMap", 999, "CUDA_ERROR_UNKNOWN", 0)
}

#[test]
fn a_budget_bounds_blocks_that_grow() {
    let harness = FakeHarness::wrapped(true, |fake, _| BudgetLayer::new(1 << 20).layer(fake));
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let budget = resource.budget();
    let mut block = resource.allocate(256 * KIB, x, TAG).unwrap();
    assert_eq!(resource.try_grow(&mut block, 2048 * KIB), Ok(false), "2 MiB of 1 MiB");
    assert_eq!((block.bytes(), budget.reserved_bytes()), (256 * KIB, 256 << 10));
    assert_eq!(resource.try_grow(&mut block, 1024 * KIB), Ok(true));
    assert_eq!(
        (block.bytes(), budget.reserved_bytes(), budget.remaining()),
        (1024 * KIB, 1 << 20, 0)
    );
    let refused = resource.allocate(1, x, TAG).unwrap_err();
    assert!(matches!(refused, ResourceError::OutOfBudget { .. }), "{refused}");
    assert_eq!(resource.try_grow(&mut block, 1024 * KIB + 1), Ok(false));
    assert_eq!(resource.try_grow(&mut block, 1), Ok(true), "it has that many");
    let holders = budget.holders();
    assert_eq!(
        holders.iter().map(|h| (h.tag, h.bytes, h.blocks)).collect::<Vec<_>>(),
        [(TAG, 1 << 20, 1)]
    );
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    assert_eq!((budget.reserved_bytes(), budget.holders().len()), (0, 0));
}

#[test]
fn a_budget_gets_back_what_a_growth_did_not_take() {
    let budget = Budget::new(1 << 20);
    let harness =
        FakeHarness::wrapped(true, |fake, _| BudgetLayer::on(&budget).layer(Scripted::new(fake)));
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let mut block = resource.allocate(KIB, x, TAG).unwrap();
    let neighbour = resource.allocate(KIB, x, TAG).unwrap();
    assert_eq!(resource.try_grow(&mut block, 4 * KIB), Ok(false), "there is a block behind it");
    assert_eq!(budget.reserved_bytes(), 2 << 10);
    resource.deallocate(neighbour).unwrap();
    resource.reap_pending().unwrap();
    resource.upstream().calls();
    assert_eq!(resource.try_grow(&mut block, 1024 * KIB + 1), Ok(false), "beyond the limit");
    // Only for what the block is: nothing is reaped, nothing grows.
    assert_eq!((resource.upstream().calls().as_slice(), block.bytes()), (&["try_grow"][..], KIB));
    resource.upstream().fail("try_grow", failed());
    assert_eq!(resource.try_grow(&mut block, 4 * KIB), Err(failed()));
    assert_eq!((block.bytes(), budget.reserved_bytes()), (KIB, 1 << 10));
    let (mut part, whole) = block.narrow(0, 256).unwrap();
    let grown = resource.try_grow(&mut part, 4 * KIB);
    assert!(matches!(grown, Err(ResourceError::PartOfBlock { .. })), "{grown:?}");
    assert_eq!(budget.reserved_bytes(), 1 << 10);
    let mut block = whole.restore(part).unwrap();
    assert_eq!(resource.try_grow(&mut block, 4 * KIB), Ok(true));
    assert_eq!(budget.reserved_bytes(), 4 << 10);
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    assert_eq!(budget.reserved_bytes(), 0);
}

#[test]
fn statistics_count_the_new_bytes_and_no_allocation() {
    let harness = FakeHarness::wrapped(true, |fake, _| StatisticsLayer::new().layer(fake));
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let mut block = resource.allocate(1000, x, TAG).unwrap();
    let scope = resource.push(AllocTag::new("scope"));
    assert_eq!(resource.try_grow(&mut block, 5000), Ok(true));
    assert_eq!(resource.try_grow(&mut block, 32 << 20).ok(), None, "more than the device has");
    assert_eq!(resource.try_grow(&mut block, 5000), Ok(true));
    let counted = scope.pop();
    assert_eq!(
        (counted.bytes.current, counted.bytes.total, counted.allocations.total),
        (4000, 4000, 0)
    );
    let all = resource.snapshot();
    assert_eq!((all.bytes.current, all.bytes.peak, all.bytes.total), (5000, 5000, 5000));
    assert_eq!((all.allocations.current, all.allocations.total), (1, 1));
    let of_tag = &all.by_tag[0];
    let of_stream = &all.by_stream[0];
    assert_eq!((of_tag.tag, of_tag.bytes.current, of_tag.allocations.total), (TAG, 5000, 1));
    assert_eq!((of_stream.bytes.current, of_stream.allocations.total), (5000, 1));
    resource.deallocate(block).unwrap();
    let all = resource.snapshot();
    assert_eq!((all.bytes.current, all.bytes.total, all.frees), (0, 5000, 1));
}

#[test]
fn the_log_has_a_row_of_each_growth_that_took_place_or_failed() {
    let sink = Arc::new(InMemorySink::new());
    let layer = LoggingLayer::new(Arc::<InMemorySink>::clone(&sink));
    let harness = FakeHarness::wrapped(true, |fake, _| layer.layer(Scripted::new(fake)));
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let mut block = resource.allocate(1000, x, TAG).unwrap();
    assert_eq!(resource.try_grow(&mut block, 500), Ok(true), "no growth");
    assert_eq!(resource.try_grow(&mut block, 5000), Ok(true));
    let neighbour = resource.allocate(1, x, TAG).unwrap();
    assert_eq!(resource.try_grow(&mut block, 9000), Ok(false), "nothing has changed");
    resource.upstream().fail("try_grow", failed());
    resource.try_grow(&mut block, 7000).unwrap_err();
    let ptr = block.ptr();
    let generation = block.generation().get();
    let rows: Vec<_> =
        sink.records().into_iter().filter(|row| row.action == RecordAction::Grow).collect();
    let seen: Vec<_> =
        rows.iter().map(|row| (row.ptr, row.generation, row.bytes, row.tag)).collect();
    assert_eq!(seen, [(ptr, generation, 5000, TAG), (ptr, generation, 7000, TAG)]);
    assert_eq!(rows.iter().map(|row| row.stream).collect::<Vec<_>>(), [x.slot() as u64; 2]);
    let failures: Vec<_> =
        rows.iter().map(|row| row.failure.as_ref().map(|failure| failure.kind)).collect();
    assert_eq!(failures, [None, Some("driver")]);
    resource.deallocate(block).unwrap();
    resource.deallocate(neighbour).unwrap();
}

#[test]
fn a_log_with_growths_replays_and_rmms_format_leaves_them_out() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    let rmm = folder.path().join("rmm.csv");
    let layer = LoggingLayer::new(Arc::new(CsvSink::create(&log).unwrap()));
    let harness = FakeHarness::wrapped(true, |fake, _| layer.layer(fake));
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let mut block = resource.allocate(1000, x, TAG).unwrap();
    assert_eq!(resource.try_grow(&mut block, 5000), Ok(true));
    assert_eq!(resource.try_grow(&mut block, 9000), Ok(true));
    resource.deallocate(block).unwrap();
    resource.flush().unwrap();
    let file = std::fs::File::create(&rmm).unwrap();
    let mut writer = RecordWriter::with_format(file, TraceFormat::Rmm).unwrap();
    for row in TraceReader::open(&log).unwrap() {
        writer.write(&row.unwrap().record).unwrap();
    }

    for (path, grows, peak) in [(log, 2, 9000), (rmm, 0, 1000)] {
        let other = FakeHarness::new(true);
        let [x, y] = other.streams();
        let summary = Replay::new(other.resource())
            .options(ReplayOptions::new().strict(true))
            .verify(&**other.ops())
            .run(TraceReader::open(&path).unwrap(), &mut vec![x, y], &mut ())
            .unwrap();
        assert!(summary.passed(), "{:?}", summary.verdict());
        let counts = (summary.grows, summary.bad_rows.count, summary.allocs);
        assert_eq!(counts, (grows, 0, 1), "{path:?}");
        assert_eq!(summary.peak_live_bytes, peak);
    }
}

#[test]
fn a_block_that_does_not_grow_is_no_failure_to_a_failure_callback() {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let layer = FailureCallbackLayer::new().with_callback(|_| {
        ASKED.fetch_add(1, Ordering::Relaxed);
        Response::Decline
    });
    let harness = FakeHarness::wrapped(true, |fake, _| layer.layer(fake));
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let mut block = resource.allocate(1000, x, TAG).unwrap();
    let neighbour = resource.allocate(1000, x, TAG).unwrap();
    assert_eq!(resource.try_grow(&mut block, 5000), Ok(false));
    assert_eq!(ASKED.load(Ordering::Relaxed), 0);
    resource.deallocate(neighbour).unwrap();
    resource.reap_pending().unwrap();
    assert_eq!(resource.try_grow(&mut block, 5000), Ok(true));
    resource.deallocate(block).unwrap();
}

#[test]
fn a_guarded_or_an_aligned_block_does_not_grow() {
    let guarded = FakeHarness::wrapped(true, |fake, ops| DebugGuardLayer::new(ops).layer(fake));
    let aligned = |threshold| {
        let layer = AlignedLayer::new(4096).unwrap().with_threshold(threshold);
        FakeHarness::wrapped(true, |fake, _| layer.layer(fake))
    };
    let padded = aligned(0);
    let plain = aligned(1 << 20);
    let harnesses: [&dyn Harness; 3] = [&guarded, &padded, &plain];
    for harness in harnesses {
        let resource = harness.resource();
        let [x, _] = harness.streams();
        let mut block = resource.allocate(1000, x, TAG).unwrap();
        let before = resource.usage();
        for (bytes, has_them) in [(1000, true), (1, true), (1001, false), (5000, false)] {
            assert_eq!(resource.try_grow(&mut block, bytes), Ok(has_them), "{bytes}");
        }
        assert_eq!((block.bytes(), resource.usage()), (1000, before));
        let stranger = harness.resource().allocate(1, x, TAG).unwrap();
        resource.deallocate(stranger).unwrap();
        resource.deallocate(block).unwrap();
        resource.reap_pending().unwrap();
        assert_eq!(resource.usage().outstanding(), 0);
    }
    // A block of the resource inside is a stranger to the layer.
    let [x, _] = guarded.streams();
    let mut stranger = guarded.fake().allocate(1000, x, TAG).unwrap();
    let refused = guarded.resource().try_grow(&mut stranger, 1).unwrap_err();
    assert!(matches!(refused, ResourceError::ForeignBlock { .. }), "{refused}");
    guarded.fake().deallocate(stranger).unwrap();
}
