//! R10: a buffer of a backend is given to cudarc for good, through every layer, after all of its
//! uses. Memory that is no allocation of the driver is refused by name, and nothing changes.

#![cfg(all(
    feature = "async",
    feature = "budget",
    feature = "callbacks",
    feature = "debug-guard",
    feature = "direct",
    feature = "logging",
    feature = "pool",
    feature = "statistics"
))]

use std::sync::Arc;

use dmr::DeviceRuntimeBuilder;
use dmr::cudarc::driver::CudaSlice;
use dmr::dmr_adaptors::ResourceLayer;
use dmr::dmr_adaptors::callbacks::Response;
use dmr::dmr_adaptors::logging::InMemorySink;
use dmr::dmr_core::record::RecordAction;
use dmr::dmr_streams::TrackedMemory;
use dmr::prelude::*;
use dmr_adaptors::aligned::AlignedLayer;
use dmr_testkit::Rig;

const LEN: usize = 1 << 14;
const TAG: AllocTag = AllocTag::new("weights");

type Choose = fn(DeviceRuntimeBuilder) -> DeviceRuntimeBuilder;

/// Backends whose blocks are allocations of the driver, alone and in layers.
const GIVING: [(&str, Choose); 5] = [
    ("direct", |it| it.backend(Backend::Direct)),
    ("direct-tracked", |it| it.backend(Backend::DirectTracked)),
    ("async", |it| it.backend(Backend::Async)),
    ("direct-tracked in layers", |it| in_layers(it.backend(Backend::DirectTracked))),
    ("async in layers", |it| in_layers(it.backend(Backend::Async))),
];

fn in_layers(builder: DeviceRuntimeBuilder) -> DeviceRuntimeBuilder {
    let builder = builder.on_out_of_memory(|_| Response::Decline).statistics();
    builder.log_to(Arc::new(InMemorySink::new())).budget_on(&Budget::new(1 << 30))
}

fn runtime(rig: &Rig, choose: Choose) -> DeviceRuntime {
    let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
    choose(builder).build().unwrap()
}

/// Returns the elements of a slice, and frees it.
fn read(slice: CudaSlice<u8>) -> Vec<u8> {
    let host = slice.stream().clone_dtoh(&slice).unwrap();
    slice.stream().synchronize().unwrap();
    host
}

#[test]
fn a_buffer_of_a_backend_becomes_a_slice_of_its_home_stream() {
    for (name, choose) in GIVING {
        let rig = Rig::new();
        let runtime = runtime(&rig, choose);
        let home = runtime.streams().acquire().unwrap();
        let buffer = DeviceBuffer::from_host(&runtime, &home, &[7u8; LEN]).unwrap();
        let ptr = buffer.device_ptr();
        let freed = runtime.resource().usage().total_freed;
        let slice = buffer.into_cuda_slice().unwrap();
        assert_eq!((slice.len(), slice.stream()), (LEN, home.stream()), "{name}");
        let usage = runtime.resource().usage();
        assert_eq!(usage.outstanding(), 0, "{name}");
        assert_eq!(usage.total_freed - freed, LEN as u64, "{name}");
        // Another block does not get the memory.
        let next = DeviceBuffer::from_host(&runtime, &home, &[8u8; LEN]).unwrap();
        assert_ne!(next.device_ptr(), ptr, "{name}");
        assert_eq!(read(slice), [7; LEN], "{name}");
        drop((next, home));
        runtime.resource().reap_pending().unwrap();
        drop(runtime);
        rig.assert_clean();
    }
}

#[test]
fn a_slice_outlives_the_runtime_that_gave_it_away() {
    for (name, choose) in GIVING {
        let rig = Rig::new();
        let runtime = runtime(&rig, choose);
        let home = runtime.streams().acquire().unwrap();
        let buffer = DeviceBuffer::from_host(&runtime, &home, &[7u8; LEN]).unwrap();
        let slice = buffer.into_cuda_slice().unwrap();
        drop((home, runtime));
        assert_eq!(read(slice), [7; LEN], "{name}");
        rig.assert_clean();
    }
}

#[test]
fn cudarc_uses_the_slice_after_the_uses_of_the_buffer_on_other_streams() {
    for (name, choose) in GIVING {
        let rig = Rig::new();
        let runtime = runtime(&rig, choose);
        let [home, away] = [(); 2].map(|()| runtime.streams().acquire().unwrap());
        let mut buffer = DeviceBuffer::<u8>::zeroed(&runtime, &home, LEN).unwrap();
        let elsewhere = buffer.fill(5, &away);
        // A resource that tracks no uses has those on the home stream only.
        let used_on = match runtime.resource().supports_block_use_tracking() {
            true => &away,
            false => {
                elsewhere.unwrap_err();
                &home
            }
        };
        rig.delay(used_on);
        buffer.fill(5, used_on).unwrap();
        let slice = buffer.into_cuda_slice().unwrap();
        let third = rig.device().context().new_stream().unwrap();
        assert_eq!(third.clone_dtoh(&slice).unwrap(), [5; LEN], "{name}");
        third.synchronize().unwrap();
        drop((slice, third, home, away, runtime));
        rig.assert_clean();
    }
}

#[test]
fn every_layer_counts_a_buffer_that_is_given_away_as_freed() {
    let rig = Rig::new();
    let sink = Arc::new(InMemorySink::new());
    let budget = Budget::new(1 << 20);
    let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
    let builder = builder.backend(Backend::Async).statistics().log_to(sink.clone());
    let runtime = builder.budget_on(&budget).build().unwrap();
    let home = runtime.streams().acquire().unwrap();
    let buffer = DeviceBuffer::<u8>::uninit_tagged(&runtime, &home, LEN, TAG).unwrap();
    // Refused, so that nothing changes but the log.
    let mut launch = LaunchRecorder::new_strict(&home);
    launch.read(&buffer);
    let launch = launch.prepare(&runtime).unwrap();
    let buffer = buffer.into_cuda_slice().unwrap_err().buffer;
    launch.cancel().unwrap();
    assert_eq!(budget.reserved_bytes(), LEN as u64);
    assert_eq!(runtime.statistics().unwrap().snapshot().bytes.current, LEN as u64);
    let slice = buffer.into_cuda_slice().unwrap();
    assert_eq!(budget.reserved_bytes(), 0);
    let rows = sink.records();
    let rows: Vec<_> =
        rows.iter().map(|row| (row.action, row.bytes, row.failure.is_some())).collect();
    let bytes = LEN as u64;
    let deallocate = RecordAction::Deallocate;
    let expected = [
        (RecordAction::Allocate, bytes, false),
        (deallocate, bytes, true),
        (deallocate, bytes, false),
    ];
    assert_eq!(rows, expected);
    let statistics = runtime.statistics().unwrap().snapshot();
    assert_eq!((statistics.bytes.current, statistics.bytes.total), (0, bytes));
    drop((slice, home, runtime));
    rig.assert_clean();
}

#[test]
fn memory_that_is_no_allocation_of_the_driver_is_refused_by_name() {
    let refusing: [(&str, Choose); 4] = [
        ("the pool", |it| it.backend(Backend::Pool)),
        ("the pool", |it| {
            it.backend(Backend::Pool).pool_config(PoolConfig::fast().with_page_size(0))
        }),
        ("the pool", |it| in_layers(it.backend(Backend::Pool))),
        ("the debug guard", |it| it.backend(Backend::Async).debug_guard()),
    ];
    for (name, choose) in refusing {
        let rig = Rig::new();
        let runtime = runtime(&rig, choose);
        assert_refused(&runtime, name);
        runtime.resource().reap_pending().unwrap();
        drop(runtime);
        rig.assert_clean();
    }
    let rig = Rig::new();
    let runtime = runtime(&rig, |it| it.backend(Backend::Async));
    let aligned = runtime.tenant(|shared| AlignedLayer::new(4096).unwrap().layer(shared)).unwrap();
    assert_refused(&aligned, "the layer for alignment");
    drop((aligned, runtime));
    rig.assert_clean();
}

fn assert_refused(context: &impl DeviceContext, name: &str) {
    let home = context.streams().acquire().unwrap();
    let buffer = DeviceBuffer::from_host(context, &home, &[1u8, 2, 3]).unwrap();
    let before = (format!("{buffer:?}"), context.resource().usage());
    let refused = buffer.into_cuda_slice().unwrap_err();
    let ResourceError::NotGivenAway { resource, .. } = refused.error else { panic!("{refused}") };
    assert_eq!(resource, name);
    let after = (format!("{:?}", refused.buffer), context.resource().usage());
    assert_eq!(after, before, "{name}");
    assert_eq!(refused.buffer.to_host(&home).unwrap(), [1, 2, 3], "{name}");
}

#[test]
fn a_buffer_of_a_prepared_launch_stays_with_every_charge() {
    for (name, choose) in GIVING {
        let rig = Rig::new();
        let runtime = runtime(&rig, choose);
        let [home, away] = [(); 2].map(|()| runtime.streams().acquire().unwrap());
        let mut buffer = DeviceBuffer::from_host(&runtime, &home, &[7u8; LEN]).unwrap();
        let mut launch = LaunchRecorder::new_strict(&away);
        launch.write(&mut buffer);
        let prepared = launch.prepare(&runtime);
        if !runtime.resource().supports_block_use_tracking() {
            prepared.unwrap_err();
            assert_eq!(read(buffer.into_cuda_slice().unwrap()), [7; LEN], "{name}");
            continue;
        }
        let launch = prepared.unwrap();
        let usage = runtime.resource().usage();
        let refused = buffer.into_cuda_slice().unwrap_err();
        assert!(matches!(refused.error, ResourceError::WindowConflict { .. }), "{name}: {refused}");
        assert_eq!(runtime.resource().usage(), usage, "{name}");
        launch.cancel().unwrap();
        let buffer = refused.buffer;
        assert_eq!(buffer.to_host(&away).unwrap(), [7; LEN], "{name}");
        assert_eq!(read(buffer.into_cuda_slice().unwrap()), [7; LEN], "{name}");
        drop((home, away, runtime));
        rig.assert_clean();
    }
}
