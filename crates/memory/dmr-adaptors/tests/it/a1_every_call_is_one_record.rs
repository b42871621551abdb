//! A1: every allocate, deallocate and reap, ok or failed, is one record that says what happened.

#![cfg(feature = "logging")]

use crate::a1;
use std::sync::Arc;

use crate::a1::Recycler;
use dmr_adaptors::logging::{InMemorySink, LoggingLayer, LoggingResource, QueryScope, with_query};
use dmr_adaptors::{ResourceBuilder, ResourceLayer};
use dmr_core::conformance::check_forwarding;
use dmr_core::record::{MAX_MESSAGE_LEN, RecordAction};
use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_fake::FakeHarness;

type Logged = LoggingResource<Arc<Recycler>>;

fn logged() -> (Arc<Recycler>, Arc<InMemorySink>, Logged) {
    let base = Arc::new(Recycler::new());
    let sink = Arc::new(InMemorySink::new());
    let resource = LoggingLayer::new(sink.clone()).layer(Arc::clone(&base));
    (base, sink, resource)
}

#[test]
fn an_allocation_and_its_free_say_everything_about_the_block() {
    let (base, sink, resource) = logged();
    let block = resource.allocate(1000, base.stream(5), AllocTag::new("keys")).unwrap();
    let ptr = block.ptr();
    let generation = block.generation().get();
    with_query(9, || resource.deallocate(block)).unwrap();
    let [allocate, free] = &sink.records()[..] else { panic!("{:?}", sink.records()) };
    assert_eq!(allocate.action, RecordAction::Allocate);
    assert_eq!(free.action, RecordAction::Deallocate);
    for row in [allocate, free] {
        assert_eq!((row.ptr, row.generation, row.bytes), (ptr, generation, 1000));
        assert_eq!((row.stream, row.device, row.tag.name()), (5, 3, "keys"));
        assert_eq!((row.thread, &row.failure), (allocate.thread, &None));
    }
    assert!(allocate.order < free.order);
    assert_eq!((allocate.query_id, free.query_id), (0, 9));
    assert!(allocate.time_ns < free.time_ns);
    let since_epoch = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let age = since_epoch - u128::from(free.time_ns);
    assert!(age < 10_000_000_000, "wall-clock time: {age}");
}

#[test]
fn calls_that_fail_are_recorded_with_their_kind_and_message() {
    let (base, sink, resource) = logged();
    let tag = AllocTag::new("keys");
    let zero = resource.allocate(0, base.stream(2), tag).unwrap_err();
    let other = Recycler::new();
    let stranger = other.allocate(7, other.stream(1), tag).unwrap();
    let refused = resource.deallocate(stranger).unwrap_err();
    assert_eq!(resource.try_reap(), Ok(17));
    let reap = resource.reap_pending().unwrap_err();
    let rows = sink.records();
    let said: Vec<_> = rows
        .iter()
        .map(|row| {
            let failure = row.failure.as_ref();
            (row.action, row.bytes, failure.map(|f| f.kind), failure.map(|f| f.message.to_string()))
        })
        .collect();
    use RecordAction::{Allocate, Deallocate, Reap};
    let expected = [
        (Allocate, 0, Some("invalid_size"), Some(zero.to_string())),
        (Deallocate, 7, Some("foreign_block"), Some(refused.error.to_string())),
        (Reap, 17, None, None),
        (Reap, 0, Some("driver"), Some(reap.to_string())),
    ];
    assert_eq!(said, expected);
    assert_eq!((rows[0].stream, rows[0].tag, rows[0].device), (2, tag, 3));
    assert_eq!((rows[2].ptr, rows[2].device), (0, 3));
    assert_eq!(resource.dropped_records(), 0);
    other.deallocate(refused.block).unwrap();
}

#[test]
fn a_long_message_is_cut_between_characters() {
    let long: &'static str = Box::leak("é".repeat(MAX_MESSAGE_LEN).into_boxed_str());
    let budget = AllocTag::new(long);
    let error = dmr_core::ResourceError::out_of_budget(budget, 1, 1, 0, 0, Vec::new());
    let failure = dmr_core::record::Failure::from(&error);
    assert!(error.to_string().starts_with(&*failure.message));
    assert!((MAX_MESSAGE_LEN - 1..=MAX_MESSAGE_LEN).contains(&failure.message.len()));
}

#[test]
fn each_thread_has_a_number_of_its_own() {
    let (base, sink, resource) = logged();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| a1::churn(&resource, base.stream(1), 1));
        }
    });
    let rows = sink.records();
    let threads: std::collections::HashSet<_> = rows.iter().map(|row| row.thread).collect();
    assert_eq!((rows.len(), threads.len()), (16, 8));
    assert!(threads.iter().all(|thread| (1..100_000).contains(thread)), "{threads:?}");
}

#[test]
fn queries_nest_per_thread_and_end_with_their_scope_also_by_a_panic() {
    let (base, sink, resource) = logged();
    let touch = || a1::churn(&resource, base.stream(1), 1);
    touch();
    with_query(1, || {
        touch();
        let caught =
            std::panic::catch_unwind(|| with_query(2, || std::panic::resume_unwind(Box::new(1))));
        assert!(caught.is_err());
        touch();
        std::thread::scope(|scope| scope.spawn(touch).join().unwrap());
        let inner = QueryScope::enter(3);
        touch();
        drop(inner);
        touch();
    });
    touch();
    let queries: Vec<_> = sink.records().iter().step_by(2).map(|row| row.query_id).collect();
    assert_eq!(queries, [0, 1, 1, 0, 3, 1, 0]);
}

#[test]
fn the_stack_is_one_line() {
    let base = FakeHarness::new(false);
    let layer = LoggingLayer::new(Arc::new(InMemorySink::new()));
    let inner = format!("{:?}", base.fake());
    let resource = ResourceBuilder::new(Arc::clone(base.fake())).layer(layer).build();
    assert_eq!(format!("{resource:?}"), format!("Logging({inner})"));
    assert_eq!(resource.to_string(), format!("Logging({inner})"));
    assert_eq!(format!("{:?}", resource.sink()), "InMemorySink(0 records)");
    assert!(Arc::ptr_eq(&resource.into_upstream(), base.fake()));
}

#[test]
fn every_method_is_forwarded() {
    for tracks in [true, false] {
        let harness = FakeHarness::new(tracks);
        let layer = LoggingLayer::new(Arc::new(InMemorySink::new()));
        check_forwarding(&harness, |spy| layer.layer(spy)).unwrap();
    }
}

mod conformance {
    mod tracking {
        dmr_core::conformance_tests!(crate::a1_every_call_is_one_record::harness(true));
    }

    mod not_tracking {
        dmr_core::conformance_tests!(crate::a1_every_call_is_one_record::harness(false));
    }
}

fn harness(tracks: bool) -> FakeHarness<LoggingResource<Arc<dmr_fake::FakeResource>>> {
    let layer = LoggingLayer::new(Arc::new(InMemorySink::new()));
    FakeHarness::wrapped(tracks, |fake, _| layer.layer(fake))
}
