//! T9: a runtime returns to the driver the memory that serves no block, over each upstream, and
//! reports exactly what it has reserved.

#![cfg(all(feature = "async", feature = "direct", feature = "pool"))]

use std::sync::Arc;

use dmr::DeviceRuntimeBuilder;
use dmr::prelude::*;
use dmr_sim::{Policy, Universe};
use dmr_testkit::Rig;

const GIB: usize = 1 << 30;
const TAG: AllocTag = AllocTag::new("trim");

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
const VIRTUAL_MEMORY: i32 = 102;

type Choose = fn(DeviceRuntimeBuilder) -> DeviceRuntimeBuilder;

/// The name of a backend, whether the device has virtual memory, and how the backend is chosen.
const BACKENDS: [(&str, i32, Choose); 6] = [
    ("direct", 1, |builder| builder.backend(Backend::Direct)),
    ("tracked direct", 1, |builder| builder.backend(Backend::DirectTracked)),
    ("async", 1, |builder| builder.backend(Backend::Async)),
    ("pool over pages", 1, |builder| builder.backend(Backend::Pool)),
    ("pool without pages", 1, |builder| {
        builder.backend(Backend::Pool).pool_config(PoolConfig::fast().with_page_size(0))
    }),
    ("pool where there are no pages", 0, |builder| builder.backend(Backend::Pool)),
];

const LAYERS: [(&str, Choose); 2] = [
    ("alone", |builder| builder),
    ("in layers", |builder| {
        let builder = builder.budget_on(&Budget::new(15 << 30)).statistics();
        builder.log_to(Arc::new(dmr::dmr_adaptors::logging::NullSink))
    }),
];

fn on_every_stack(test: impl Fn(&str, &Rig, &DeviceRuntime)) {
    for (backend, has_virtual_memory, choose) in BACKENDS {
        for (layers, add) in LAYERS {
            let universe = Universe::builder().attribute(VIRTUAL_MEMORY, has_virtual_memory);
            // A trim waits a millisecond for frees, however long this machine delays its thread.
            let universe = universe.policy(Policy::Eager).build().unwrap();
            let rig = Rig::in_universe(&universe);
            let runtime = add(choose(builder(&rig))).build().unwrap();
            test(&format!("{backend}, {layers}"), &rig, &runtime);
            drop(runtime);
            rig.assert_clean();
        }
    }
}

fn builder(rig: &Rig) -> DeviceRuntimeBuilder {
    DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()))
}

fn allocate(runtime: &DeviceRuntime, bytes: usize) -> DeviceBlock {
    runtime.resource().allocate(bytes, StreamId::DEFAULT, TAG).unwrap()
}

fn free(runtime: &DeviceRuntime, block: DeviceBlock) {
    runtime.resource().deallocate(block).unwrap();
    runtime.resource().reap_pending().unwrap();
}

/// Bytes that the driver has allocated.
fn taken(rig: &Rig) -> u64 {
    let (free, total) = rig.device().memory_info().unwrap();
    total - free
}

#[test]
fn a_trim_returns_all_memory_and_reserved_is_the_memory_taken_from_the_driver() {
    on_every_stack(|name, rig, runtime| {
        let before = taken(rig);
        let memory = runtime.resource();
        let block = allocate(runtime, 8 * GIB);
        free(runtime, block);
        let reserved = memory.usage().reserved;
        assert_eq!(reserved, taken(rig) - before, "{name}");
        assert_eq!(runtime.trim_to(0), Ok(reserved), "{name}");
        assert_eq!((memory.usage().reserved, taken(rig)), (0, before), "{name}");
        assert_eq!(runtime.trim_to(0), Ok(0), "{name}");
        // Another runtime on the device has it all.
        let other = builder(rig).backend(Backend::Async).build().unwrap();
        free(&other, allocate(&other, 15 * GIB));
        assert!(other.trim_to(0).unwrap() >= 15 << 30, "{name}");
    });
}

#[test]
fn what_is_to_be_kept_and_what_is_live_stays() {
    on_every_stack(|name, rig, runtime| {
        let before = taken(rig);
        let mut blocks: Vec<_> = (0..6).map(|_| allocate(runtime, GIB)).collect();
        let live = blocks.remove(2);
        blocks.into_iter().for_each(|block| free(runtime, block));
        let memory = runtime.resource();
        for keep in [u64::MAX, 4 << 30, 2 << 30, 0] {
            let reserved = memory.usage().reserved;
            let trimmed = runtime.trim_to(keep).unwrap();
            let left = memory.usage().reserved;
            assert_eq!((left, left), (reserved - trimmed, taken(rig) - before), "{name}");
            let piece = 64 << 20;
            assert!(left <= keep.max(GIB as u64).saturating_add(piece), "{name}: {left} of {keep}");
            assert!(left >= keep.min(reserved).min(GIB as u64), "{name}: {left} of {keep}");
        }
        assert_eq!(memory.usage().live, GIB as u64, "{name}");
        free(runtime, live);
    });
}

#[test]
fn the_pool_says_what_upstream_keeps_besides() {
    let rig = Rig::in_universe(&Universe::builder().policy(Policy::Eager).build().unwrap());
    let config = PoolConfig::fast().with_page_size(0).with_release_threshold(0);
    // Exact sizes: the gaps that the simulator watches are left out.
    let runtime = builder(&rig).backend(Backend::Pool).pool_config(config);
    let runtime = runtime.without_observer().build().unwrap();
    free(&runtime, allocate(&runtime, 8 * GIB));
    let stats = runtime.pool().unwrap().stats();
    assert_eq!((stats.reserved, stats.upstream_reserved), (0, 8 << 30), "the driver keeps it");
    assert_eq!(runtime.resource().usage().reserved, 8 << 30);
    assert_eq!(runtime.trim_to(0), Ok(8 << 30));
    assert_eq!(runtime.pool().unwrap().stats().upstream_reserved, 0);
    drop(runtime);
    rig.assert_clean();
}

#[test]
fn a_driver_that_fails_once_loses_nothing_and_the_next_trim_frees_the_rest() {
    const UNKNOWN: i32 = 999;
    for (name, _, choose) in BACKENDS {
        let failed = dmr_testkit::faults::for_each_driver_call(
            UNKNOWN,
            |rig| {
                let runtime = choose(builder(rig)).build().unwrap();
                free(&runtime, allocate(&runtime, GIB));
                runtime
            },
            |rig, runtime| {
                let _ = runtime.trim_to(0);
                rig.universe().clear_faults();
                // Memory whose free has not executed within a millisecond stays until the next one.
                let is_trimmed = || {
                    runtime.trim_to(0).unwrap();
                    runtime.resource().usage().reserved == 0
                };
                assert!((0..20).any(|_| is_trimmed()), "{name}");
                assert_eq!(runtime.resource().usage().outstanding(), 0, "{name}");
            },
        );
        assert!(failed > 0, "{name}");
    }
}
