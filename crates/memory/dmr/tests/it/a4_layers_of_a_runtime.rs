//! A4, A2: the layers that the builder puts around a backend, in their order, and what a program
//! reads from them.

#![cfg(all(
    feature = "async",
    feature = "budget",
    feature = "callbacks",
    feature = "debug-guard",
    feature = "logging",
    feature = "pool",
    feature = "statistics"
))]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dmr::dmr_adaptors::budget::Budget;
use dmr::dmr_adaptors::callbacks::Response;
use dmr::dmr_adaptors::logging::InMemorySink;
use dmr::prelude::*;
use dmr_testkit::Rig;

const MIB: usize = 1 << 20;

#[test]
fn layers_stand_in_one_order_whatever_they_were_asked_for_in() {
    let rig = Rig::new();
    let runtime = DeviceRuntime::builder(rig.ordinal())
        .on_out_of_memory(|_| Response::Decline)
        .statistics()
        .log_to(Arc::new(InMemorySink::new()))
        .debug_guard()
        .budget_on(&Budget::new(64 << 20))
        .backend(Backend::Async)
        .build()
        .unwrap();
    let stack = format!("{:?}", runtime.resource());
    let found: Vec<_> = ["FailureCallbacks(", "Statistics(", "Logging(", "DebugGuard(", "Budget("]
        .iter()
        .map(|layer| stack.find(layer).unwrap_or_else(|| panic!("no {layer} in {stack}")))
        .collect();
    assert!(found.is_sorted(), "{stack}");
    assert!(stack.contains("Async(device"), "{stack}");
}

#[test]
fn below_a_pool_a_budget_bounds_what_the_pool_keeps() {
    let rig = Rig::new();
    let budget = Budget::new(32 * MIB as u64);
    let runtime = DeviceRuntime::builder(rig.ordinal())
        .backend(Backend::Pool)
        .budget_on(&budget)
        .statistics()
        .build()
        .unwrap();
    let stack = format!("{:?}", runtime.resource());
    let source = match runtime.pool().unwrap().stats().page_size {
        0 => "Pool(Budget(32 MiB, Async(",
        // Of the default size there would be one.
        _ => "Pool(pages of 2 MiB, Budget(32 MiB, Virtual(",
    };
    assert!(stack.starts_with(&format!("Statistics({source}")), "{stack}");
    let stream = runtime.streams().acquire().unwrap();
    let resource = runtime.resource();
    let block = resource.allocate(20 * MIB, stream.id(), AllocTag::UNTAGGED).unwrap();
    resource.deallocate(block).unwrap();
    assert_eq!(budget.reserved_bytes(), resource.usage().reserved);
    // What the pool keeps makes room for what it needs.
    let block = resource.allocate(30 * MIB, stream.id(), AllocTag::UNTAGGED).unwrap();
    let refused = resource.allocate(4 * MIB, stream.id(), AllocTag::UNTAGGED).unwrap_err();
    assert!(matches!(refused, ResourceError::OutOfBudget { .. }), "{refused}");
    resource.deallocate(block).unwrap();
    drop((stream, runtime));
    rig.assert_clean();
}

#[test]
fn runtimes_of_one_gpu_share_its_budget() {
    let rig = Rig::new();
    let build = || {
        let builder = DeviceRuntime::builder(rig.ordinal()).backend(Backend::Async);
        builder.budget(8 * MIB as u64).build().unwrap()
    };
    let one = build();
    let other = build();
    let [a, b] = [&one, &other].map(|runtime| runtime.streams().acquire().unwrap());
    let first = one.resource().allocate(6 * MIB, a.id(), AllocTag::new("first")).unwrap();
    let refused = other.resource().allocate(6 * MIB, b.id(), AllocTag::new("second")).unwrap_err();
    let ResourceError::OutOfBudget { holders, remaining, .. } = &refused else {
        panic!("{refused}");
    };
    assert_eq!(*remaining, 2 * MIB as u64);
    assert_eq!(holders[0].tag, AllocTag::new("first"), "{refused}");
    one.resource().deallocate(first).unwrap();
    one.resource().reap_pending().unwrap();
    let second = other.resource().allocate(6 * MIB, b.id(), AllocTag::new("second")).unwrap();
    assert_eq!(one.budget().unwrap().reserved_bytes(), 6 * MIB as u64);
    other.resource().deallocate(second).unwrap();
    other.resource().reap_pending().unwrap();
    drop((a, b, one, other));
    rig.assert_clean();
}

#[test]
fn what_one_pool_keeps_is_the_others_once_it_is_trimmed() {
    let rig = Rig::new();
    let budget = Budget::new(8 * MIB as u64);
    let build = || {
        let builder = DeviceRuntime::builder(rig.ordinal()).backend(Backend::Pool);
        builder.budget_on(&budget).build().unwrap()
    };
    let one = build();
    let other = build();
    let [a, b] = [&one, &other].map(|runtime| runtime.streams().acquire().unwrap());
    let first = one.resource().allocate(6 * MIB, a.id(), AllocTag::UNTAGGED).unwrap();
    one.resource().deallocate(first).unwrap();
    let ask = || other.resource().allocate(6 * MIB, b.id(), AllocTag::UNTAGGED);
    let refused = ask().unwrap_err();
    assert!(matches!(refused, ResourceError::OutOfBudget { .. }), "{refused}");
    // It does not wait: what its stream is not known to be done with goes with the second.
    for _ in 0..2 {
        one.pool().unwrap().trim_to(0).unwrap();
        rig.device().synchronize().unwrap();
    }
    assert_eq!(one.pool().unwrap().stats().reserved, 0);
    other.resource().deallocate(ask().unwrap()).unwrap();
    drop((a, b, one, other));
    rig.assert_clean();
}

#[test]
fn a_callback_makes_room_and_the_log_shows_both_attempts() {
    let rig = Rig::new();
    let sink = Arc::new(InMemorySink::new());
    let spilled = Arc::new(AtomicUsize::new(0));
    let cache: Arc<Mutex<Vec<DeviceBlock>>> = Arc::default();
    let runtime_of_cache: Arc<Mutex<Option<Arc<dyn DeviceMemoryResource>>>> = Arc::default();
    let runtime = DeviceRuntime::builder(rig.ordinal())
        .budget_on(&Budget::new(8 * MIB as u64))
        .log_to(sink.clone())
        .statistics()
        .on_out_of_memory({
            let cache = cache.clone();
            let spilled = spilled.clone();
            let resource = runtime_of_cache.clone();
            move |_| {
                let Some(block) = cache.lock().unwrap().pop() else { return Response::Decline };
                let resource = resource.lock().unwrap().clone().unwrap();
                resource.deallocate(block).unwrap();
                spilled.fetch_add(1, Ordering::SeqCst);
                Response::Retry
            }
        })
        .build()
        .unwrap();
    *runtime_of_cache.lock().unwrap() = Some(Arc::clone(runtime.resource()));
    let stream = runtime.streams().acquire().unwrap();
    let resource = runtime.resource();
    let cached = resource.allocate(6 * MIB, stream.id(), AllocTag::new("cache")).unwrap();
    cache.lock().unwrap().push(cached);

    let block = resource.allocate(4 * MIB, stream.id(), AllocTag::new("query")).unwrap();
    assert_eq!(spilled.load(Ordering::SeqCst), 1);
    let statistics = runtime.statistics().unwrap().snapshot();
    assert_eq!((statistics.bytes.current, statistics.bytes.peak), (4 << 20, 6 << 20));

    let attempts: Vec<_> = sink
        .records()
        .into_iter()
        .filter(|record| record.tag == AllocTag::new("query"))
        .map(|record| record.failure.map(|failure| failure.kind))
        .collect();
    assert_eq!(attempts.last(), Some(&None), "{attempts:?}");
    assert!(attempts[..attempts.len() - 1].iter().all(|kind| *kind == Some("out_of_budget")));
    assert!(attempts.len() >= 2, "{attempts:?}");

    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    *runtime_of_cache.lock().unwrap() = None;
    drop((stream, runtime));
    rig.assert_clean();
}

#[test]
fn over_a_pool_a_callback_is_asked_after_the_pool_has_used_what_it_keeps() {
    let rig = Rig::new();
    let budget = Budget::new(32 * MIB as u64);
    let spilled: Arc<Mutex<Vec<u64>>> = Arc::default();
    let cache: Arc<Mutex<Option<DeviceBlock>>> = Arc::default();
    let handle: Arc<Mutex<Option<Arc<dyn DeviceMemoryResource>>>> = Arc::default();
    let runtime = DeviceRuntime::builder(rig.ordinal())
        .backend(Backend::Pool)
        // Observed blocks are a little larger, and no longer fit exactly.
        .without_observer()
        .budget_on(&budget)
        .on_out_of_memory({
            let cache = cache.clone();
            let spilled = spilled.clone();
            let handle = handle.clone();
            let budget = budget.clone();
            move |_| {
                let Some(block) = cache.lock().unwrap().take() else { return Response::Decline };
                let resource = handle.lock().unwrap().clone().unwrap();
                let usage = resource.usage();
                let kept = usage.reserved - usage.live;
                spilled.lock().unwrap().push(kept + budget.remaining());
                resource.deallocate(block).unwrap();
                Response::Retry
            }
        })
        .build()
        .unwrap();
    let resource = runtime.resource();
    *handle.lock().unwrap() = Some(Arc::clone(resource));
    let stream = runtime.streams().acquire().unwrap();
    let allocate = |mib: usize| resource.allocate(mib * MIB, stream.id(), AllocTag::UNTAGGED);

    *cache.lock().unwrap() = Some(allocate(10).unwrap());
    resource.deallocate(allocate(20).unwrap()).unwrap();
    // The pool has free memory for this: no callback is called.
    let block = allocate(22).unwrap();
    assert_eq!(*spilled.lock().unwrap(), []);
    resource.deallocate(block).unwrap();
    // Here that is not enough, with all that is left of the budget.
    let block = allocate(30).unwrap();
    assert_eq!(*spilled.lock().unwrap(), [22 << 20]);
    // With nothing left in the cache, the refusal stands.
    let refused = allocate(8).unwrap_err();
    assert!(matches!(refused, ResourceError::OutOfBudget { .. }), "{refused}");
    resource.deallocate(block).unwrap();
    *handle.lock().unwrap() = None;
    drop((stream, runtime));
    rig.assert_clean();
}

#[test]
fn a_log_that_cannot_be_created_is_an_error_of_the_builder() {
    let rig = Rig::new();
    let path = std::env::temp_dir().join("no-such-folder").join("alloc.csv");
    let error = DeviceRuntime::builder(rig.ordinal()).log_csv(&path).build().unwrap_err();
    assert!(matches!(error, RuntimeError::Log { .. }), "{error}");
    assert!(error.to_string().contains("alloc.csv"), "{error}");
}
