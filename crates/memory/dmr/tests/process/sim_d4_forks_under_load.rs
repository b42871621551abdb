//! D4: a child of a process whose threads are at work, forked at any moment: every call is refused
//! or returns nothing, no call waits for a lock, none reaches the driver.
//!
//! `DMR_FORKS` sets how often each stack is forked.

#![cfg(all(target_os = "linux", not(loom)))]
#![cfg(all(feature = "budget", feature = "direct", feature = "logging", feature = "pool"))]
#![allow(unsafe_code, reason = "forks")]
#![allow(clippy::print_stderr, reason = "the times of a long run")]

use std::sync::Arc;
use std::time::Duration;

use crate::forks::{Ask, Stack, fork_under_load, refused};
use dmr::DeviceRuntime;
use dmr::dmr_cuda_async::{AsyncConfig, AsyncCudaResource, Diagnostics};
use dmr::dmr_cuda_direct::DirectCudaResource;
use dmr::dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr::dmr_pool::{PoolConfig, PoolResource, PoolStats};
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::aligned::AlignedLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer};
use dmr_adaptors::callbacks::{FailureCallbackLayer, Response};
use dmr_adaptors::logging::{InMemorySink, LoggingLayer, LoggingResource};
use dmr_core::error::PoolShortage;
use dmr_core::{AllocTag, DeviceMemoryResource, StreamId};
use dmr_streams::Tracked;
use dmr_testkit::Rig;

const MIB: u64 = 1 << 20;

/// Forks under load over this resource, and over the same resource with a budget around it.
fn fork_bare_and_with_budget<R, A>(make: impl Fn(&Rig) -> R, asks: A)
where
    R: DeviceMemoryResource + 'static,
    A: Fn(&Arc<R>) -> Vec<Ask>,
{
    fork_under_load(|rig| {
        let resource = Arc::new(make(rig));
        let asks = asks(&resource);
        Stack::new(rig, resource, asks)
    });
    fork_under_load(|rig| {
        let inner = Arc::new(make(rig));
        let mut asks = asks(&inner);
        let (resource, of_budget) = with_budget(inner);
        asks.extend(of_budget);
        Stack::new(rig, resource, asks)
    });
}

/// A budget that is often full, and the calls that a child makes on it.
fn with_budget(inner: Arc<dyn DeviceMemoryResource>) -> (Arc<dyn DeviceMemoryResource>, Vec<Ask>) {
    let whole = Budget::new(64 * MIB).named(AllocTag::intern("whole"));
    let share = whole.sub_budget(AllocTag::intern("share"), 4 * MIB);
    let around = Arc::new(BudgetLayer::on(&share).layer(inner));
    let mut asks = asks_of_budget(&share);
    asks.push(Ask::new("budget: sets limit", move || {
        share.set_limit(4 * MIB);
        true
    }));
    (around, asks)
}

fn asks_of_budget(budget: &Budget) -> Vec<Ask> {
    let ask = |name, call: fn(&Budget) -> bool| {
        let budget = budget.clone();
        Ask::new(name, move || call(&budget))
    };
    vec![
        ask("budget: reserved bytes", |budget| budget.reserved_bytes() == 0),
        ask("budget: remaining", |budget| budget.remaining() == 0),
        ask("budget: pending bytes", |budget| budget.pending_bytes() == 0),
        ask("budget: holders", |budget| budget.holders().is_empty()),
        ask("budget: limit", |budget| budget.limit() == 0),
        ask("budget: name", |budget| budget.name().is_untagged()),
        ask("budget: debug", |budget| !format!("{budget:?}").is_empty()),
        ask("budget: part", |budget| {
            budget.sub_budget(AllocTag::intern("part"), MIB).reserved_bytes() == 0
        }),
        ask("budget: reserve", |budget| budget.reserve(1000, Duration::from_millis(1)).is_err()),
        ask("budget: of a device", |_| Budget::for_device([7; 16], MIB).limit() > 0),
    ]
}

fn asks_of_pool<U: DeviceMemoryResource + 'static>(pool: &Arc<PoolResource<U>>) -> Vec<Ask> {
    let ask = |name, call: fn(&PoolResource<U>) -> bool| {
        let pool = Arc::clone(pool);
        Ask::new(name, move || call(&pool))
    };
    vec![
        ask("pool: stats", |pool| pool.stats() == PoolStats::default()),
        ask("pool: shortage", |pool| pool.shortage() == PoolShortage::default()),
        ask("pool: heap map", |pool| pool.heap_map().is_empty()),
        ask("pool: trim", |pool| refused(pool.trim_to(0))),
        ask("pool: debug", |pool| !format!("{pool:?}").is_empty()),
    ]
}

fn direct(rig: &Rig) -> DirectCudaResource {
    DirectCudaResource::new(Arc::clone(rig.streams()))
}

fn asynchronous(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

fn virtual_memory(rig: &Rig) -> VirtualCudaResource {
    VirtualCudaResource::new(Arc::clone(rig.streams()), VirtualConfig::new()).unwrap()
}

fn asks_of_async(resource: &Arc<AsyncCudaResource>) -> Vec<Ask> {
    let ask = |name, call: fn(&AsyncCudaResource) -> bool| {
        let resource = Arc::clone(resource);
        Ask::new(name, move || call(&resource))
    };
    vec![
        ask("async: trim", |resource| refused(resource.trim_to(0))),
        ask("async: diagnostics", |resource| resource.diagnostics() == Diagnostics::default()),
        ask("async: retired", |resource| refused(resource.retired_bytes(StreamId::DEFAULT))),
        ask("async: reserved", |resource| refused(resource.reserved_bytes())),
        ask("async: used", |resource| refused(resource.used_bytes())),
    ]
}

fn asks_of_pages(resource: &Arc<VirtualCudaResource>) -> Vec<Ask> {
    let resource = Arc::clone(resource);
    vec![Ask::new("virtual: pages", move || {
        let pages = resource.virtual_memory().unwrap();
        let Ok(memory) = pages.create(pages.granularity(), AllocTag::intern("page")) else {
            return refused(pages.reserve(pages.granularity()));
        };
        let _ = pages.destroy(memory);
        false
    })]
}

#[test]
fn a_child_is_refused_by_a_direct_resource() {
    fork_bare_and_with_budget(direct, |_| Vec::new());
}

#[test]
fn a_child_is_refused_by_a_tracked_resource() {
    let make = |rig: &Rig| Tracked::new(direct(rig), Arc::clone(rig.streams())).unwrap();
    fork_bare_and_with_budget(make, |_| Vec::new());
}

#[test]
fn a_child_is_refused_by_an_async_resource() {
    fork_bare_and_with_budget(asynchronous, asks_of_async);
}

#[test]
fn a_child_is_refused_by_a_virtual_resource() {
    fork_bare_and_with_budget(virtual_memory, asks_of_pages);
}

#[test]
fn a_child_is_refused_by_a_pool_over_pages() {
    let make = |rig: &Rig| {
        let config = PoolConfig::fast().with_page_size(2 * MIB);
        PoolResource::new(virtual_memory(rig), Arc::clone(rig.streams()), config).unwrap()
    };
    fork_bare_and_with_budget(make, asks_of_pool);
}

#[test]
fn a_child_is_refused_by_a_pool_over_an_async_resource() {
    let make = |rig: &Rig| {
        let streams = Arc::clone(rig.streams());
        PoolResource::new(asynchronous(rig), streams, PoolConfig::fast()).unwrap()
    };
    fork_bare_and_with_budget(make, asks_of_pool);
}

#[test]
fn a_child_is_refused_by_a_pool_with_an_observer() {
    let make = |rig: &Rig| {
        let streams = Arc::clone(rig.streams());
        let pool = PoolResource::new(asynchronous(rig), streams, PoolConfig::fast()).unwrap();
        pool.with_observer(rig.device().memory_observer().unwrap())
    };
    fork_bare_and_with_budget(make, asks_of_pool);
}

/// Outside of a runtime's own layers: those that a runtime does not have.
#[test]
fn a_child_is_refused_by_layers_stacked_by_hand() {
    fork_under_load(|rig| {
        let sink = Arc::new(InMemorySink::bounded(10_000));
        let log = LoggingLayer::new(Arc::clone(&sink) as _).layer(asynchronous(rig));
        let aligned = Arc::new(AlignedLayer::new(4096).unwrap().layer(log));
        let asked = Arc::clone(&aligned);
        let ask_log = move |call: fn(&LoggingResource<AsyncCudaResource>) -> bool| {
            let asked = Arc::clone(&asked);
            move || call(asked.upstream())
        };
        let asks = vec![
            Ask::new("log: flush", ask_log(|log| log.flush().is_err())),
            Ask::new("log: debug", ask_log(|log| !format!("{:?}", log.sink()).is_empty())),
            Ask::new("sink: records", move || sink.records().is_empty()),
        ];
        let callbacks = FailureCallbackLayer::new().with_callback(|_| Response::Decline);
        Stack::new(rig, Arc::new(callbacks.layer(aligned)), asks)
    });
}

#[test]
fn a_child_is_refused_by_every_layer_of_a_runtime() {
    let folder = tempfile::tempdir().unwrap();
    fork_under_load(|rig| {
        let budget = Budget::new(512 * MIB);
        let runtime = DeviceRuntime::builder(rig.ordinal())
            .with_streams(Arc::clone(rig.streams()))
            .budget_on(&budget)
            .debug_guard_with(|layer| layer.with_quarantine(1 << 20, 4))
            .log_csv(folder.path().join("log.csv"))
            .statistics()
            .on_out_of_memory(|_| Response::Decline)
            .build()
            .unwrap();
        let runtime = Arc::new(runtime);
        let ask = |name, call: fn(&DeviceRuntime) -> bool| {
            let runtime = Arc::clone(&runtime);
            Ask::new(name, move || call(&runtime))
        };
        let mut asks = vec![
            ask("statistics: snapshot", |runtime| {
                runtime.statistics().unwrap().snapshot().bytes.total == 0
            }),
            ask("statistics: peaks", |runtime| {
                runtime.statistics().unwrap().reset_peaks();
                true
            }),
            ask("statistics: scope", |runtime| {
                let scope = runtime.statistics().unwrap().push(AllocTag::intern("scope"));
                scope.pop().bytes.total == 0
            }),
            ask("guard: violations", |runtime| {
                runtime.debug_guard().unwrap().violations().is_empty()
            }),
            ask("guard: check all", |runtime| refused(runtime.debug_guard().unwrap().check_all())),
            ask("log: flush", |runtime| runtime.log().unwrap().flush().is_err()),
            ask("runtime: debug", |runtime| !format!("{runtime:?}").is_empty()),
        ];
        asks.extend(asks_of_budget(&budget));
        Stack::new(rig, Arc::clone(runtime.resource()), asks)
    });
}
