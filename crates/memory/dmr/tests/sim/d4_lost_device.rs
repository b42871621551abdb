//! D4: on a lost device every stack allocates nothing, takes blocks back, and settles what is
//! retired when it is reaped, without another call to the driver.

#![cfg(all(feature = "async", feature = "direct", feature = "pool"))]

use std::sync::Arc;

use dmr::DeviceRuntimeBuilder;
use dmr::dmr_core::{Access, BlockUse};
use dmr::dmr_pinned::{PinnedMemory, PinnedPool};
use dmr::prelude::*;
use dmr_slices::CudaSlices;
use dmr_testkit::Rig;

const ILLEGAL_ADDRESS: i32 = 700;
const BYTES: usize = 3 << 20;
const TAG: AllocTag = AllocTag::new("lost");

type Choose = fn(DeviceRuntimeBuilder) -> DeviceRuntimeBuilder;

const BACKENDS: [(&str, Choose); 5] = [
    ("direct", |builder| builder.backend(Backend::Direct)),
    ("tracked direct", |builder| builder.backend(Backend::DirectTracked)),
    ("async", |builder| builder.backend(Backend::Async)),
    ("pool over pages", |builder| builder.backend(Backend::Pool)),
    ("pool over async", |builder| {
        builder.backend(Backend::Pool).pool_config(PoolConfig::fast().with_page_size(0))
    }),
];

const LAYERS: [(&str, Choose); 2] = [
    ("alone", |builder| builder),
    ("in every layer", |builder| {
        let builder = builder.budget_on(&Budget::new(1 << 30)).debug_guard().statistics();
        builder.log_to(Arc::new(dmr::dmr_adaptors::logging::NullSink))
    }),
];

fn on_every_stack(test: impl Fn(&str, &Rig, &DeviceRuntime)) {
    for (backend, choose) in BACKENDS {
        for (layers, add) in LAYERS {
            let rig = Rig::simulated();
            let builder = DeviceRuntime::builder(rig.ordinal());
            let builder = builder.with_streams(Arc::clone(rig.streams()));
            let runtime = add(choose(builder)).build().unwrap();
            test(&format!("{backend}, {layers}"), &rig, &runtime);
        }
    }
}

fn is_lost<T>(result: &ResourceResult<T>) -> bool {
    matches!(result, Err(ResourceError::DeviceLost { .. }))
}

/// Makes a driver call find the device lost.
fn lose(rig: &Rig) {
    rig.universe().lose_device(0, ILLEGAL_ADDRESS);
    assert!(is_lost(&rig.device().synchronize()));
    rig.universe().reset_calls();
}

#[test]
fn reaping_settles_what_is_retired_and_calls_the_driver_no_more() {
    on_every_stack(|name, rig, runtime| {
        let memory = runtime.resource();
        let [home, other] = [rig.stream(), rig.stream()];
        let [before, inside, after] =
            [(); 3].map(|()| memory.allocate(BYTES, home.id(), TAG).unwrap());
        let window = [BlockUse::new(inside.id(), Access::Write)];
        let open = memory.prepare_uses(&window, other.id());
        assert_eq!(open.is_ok(), memory.supports_block_use_tracking(), "{name}");
        let read = [BlockUse::new(after.id(), Access::Read)];
        if let Ok(tokens) = memory.prepare_uses(&read, other.id()) {
            memory.finish_uses(tokens).unwrap();
        }
        memory.deallocate(before).unwrap();
        memory.deallocate(inside).unwrap();
        lose(rig);

        assert!(is_lost(&memory.allocate(BYTES, home.id(), TAG)), "{name}");
        memory.deallocate(after).unwrap();
        // A window that is never closed keeps nothing, but in the debug guard.
        if runtime.debug_guard().is_some()
            && let Ok(tokens) = open
        {
            assert!(is_lost(&memory.finish_uses(tokens)), "{name}");
        }
        let reaped = [memory.try_reap(), memory.reap_pending(), memory.reap_pending()];
        assert!(reaped.iter().all(Result::is_ok), "{name}: {reaped:?}");
        assert_eq!(reaped[2], Ok(0), "{name}: there was nothing left");
        assert_eq!((memory.usage().live, memory.usage().retired), (0, 0), "{name}");
        assert_eq!(memory.bytes_outstanding(), 0, "{name}");
        assert!(memory.trim_to(0).is_ok(), "{name}");
        assert_eq!(rig.universe().calls().total(), 0, "{name}: {:?}", rig.universe().calls());
    });
}

#[test]
fn a_reap_of_pinned_memory_is_no_error_and_calls_the_driver_no_more() {
    let rig = Rig::simulated();
    let streams = rig.streams();
    let pinned = [(); 2].map(|()| PinnedMemory::new(streams, BYTES, StreamId::DEFAULT).unwrap());
    let [before, after] = pinned;
    drop(before);
    lose(&rig);
    drop(after);
    assert_eq!(
        PinnedPool::of(streams).try_reap(),
        Ok(2 * BYTES as u64),
        "what is retired counts as freed"
    );
    assert_eq!(PinnedPool::of(streams).reap_pending(), Ok(0));
    assert_eq!(PinnedPool::of(streams).trim_to(0), Ok(0));
    assert_eq!(PinnedPool::of(streams).usage().outstanding(), 0);
    assert_eq!(rig.universe().calls().total(), 0, "{:?}", rig.universe().calls());
}

#[test]
fn blocks_of_slices_are_taken_back_without_a_driver_call() {
    let rig = Rig::simulated();
    let runtime = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
    let runtime = runtime.backend(Backend::Async).build().unwrap();
    let slices = CudaSlices::of(&runtime);
    let home = rig.stream();
    let context = rig.device().context();
    // The streams end with their slices.
    let [live, retired] = [(); 2].map(|()| {
        let slice = context.new_stream().unwrap().alloc_zeros::<u8>(BYTES).unwrap();
        slices.adopt(slice, home.id(), TAG).unwrap()
    });
    let made = slices.resource().allocate(BYTES, home.id(), TAG).unwrap();
    let window = [BlockUse::new(retired.id(), Access::Write)];
    let open = slices.resource().prepare_uses(&window, home.id()).unwrap();
    slices.resource().deallocate(retired).unwrap();
    lose(&rig);
    slices.resource().deallocate(live).unwrap();
    slices.resource().deallocate(made).unwrap();
    slices.resource().reap_pending().unwrap();
    assert_eq!(slices.resource().usage().outstanding(), 0);
    assert_eq!(rig.universe().calls().total(), 0, "{:?}", rig.universe().calls());
    assert!(context.check_err().is_ok(), "cudarc keeps no error for other users of the context");
    let _ = slices.resource().cancel_uses(open);
}
