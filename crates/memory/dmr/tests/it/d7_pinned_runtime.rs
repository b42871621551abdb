//! D7: the pinned memory of a runtime has a budget and statistics of its own, and is returned by a
//! shutdown.

#![cfg(all(feature = "budget", any(feature = "async", feature = "direct")))]

use dmr::dmr_buffer::BufferError;
use dmr::dmr_streams::TrackedMemory;
use dmr::prelude::*;
use dmr_testkit::Rig;

const MIB: usize = 1 << 20;

fn runtime(rig: &Rig) -> DeviceRuntime {
    DeviceRuntime::builder(rig.ordinal()).pinned_budget(8 << 20).build().unwrap()
}

#[test]
fn a_budget_bounds_pinned_memory_apart_from_device_memory_and_its_refusal_says_which() {
    let rig = Rig::new();
    let gpu = runtime(&rig);
    let stream = gpu.streams().acquire().unwrap();
    let device = DeviceBuffer::<u8>::zeroed(&gpu, &stream, 32 * MIB).unwrap();
    let tag = AllocTag::new("staging");
    let held = PinnedBuffer::<u8>::uninit_tagged(&gpu, &stream, 6 * MIB, tag).unwrap();
    let combined = WriteCombinedBuffer::<u8>::uninit(&gpu, &stream, MIB).unwrap();
    let BufferError::Resource(refused) =
        PinnedBuffer::<u8>::uninit(&gpu, &stream, 2 * MIB).unwrap_err()
    else {
        panic!("not the budget's error");
    };
    assert!(matches!(refused, ResourceError::OutOfBudget { .. }), "{refused}");
    for named in ["pinned memory", "8 MiB", "staging", "6 MiB"] {
        assert!(refused.to_string().contains(named), "{refused}");
    }
    let budget = gpu.pinned_budget().unwrap();
    assert_eq!(budget.reserved_bytes(), 7 << 20);
    assert_eq!(gpu.pinned_usage().live, 7 << 20);
    drop((device, held, combined, stream, gpu));
    rig.assert_clean();
}

#[test]
fn a_buffer_that_does_not_fit_waits_for_dropped_ones_that_the_device_uses() {
    let rig = Rig::new();
    let gpu = runtime(&rig);
    let [home, away] = [(); 2].map(|()| gpu.streams().acquire().unwrap());
    let ops = PatternOps::new(std::sync::Arc::clone(gpu.streams())).unwrap();
    let mut device = DeviceBuffer::<u8>::zeroed(&gpu, &away, 6 * MIB).unwrap();
    let first = PinnedBuffer::from_slice(&gpu, &home, &vec![5u8; 6 * MIB]).unwrap();
    let at = first.device_ptr();
    ops.delay(away.id(), 20_000_000).unwrap();
    first.copy_to_device(&mut device, &away).unwrap();
    drop(first);
    let mut second = PinnedBuffer::<u8>::zeroed(&gpu, &home, 6 * MIB).unwrap();
    assert_eq!(second.device_ptr(), at, "the memory of the first");
    second.as_mut_slice().unwrap().fill(6);
    assert!(device.to_host(&away).unwrap().iter().all(|byte| *byte == 5));
    drop((device, second, ops, home, away, gpu));
    rig.assert_clean();
}

#[test]
fn a_tenants_pinned_buffers_are_the_runtimes() {
    let rig = Rig::new();
    let gpu = runtime(&rig);
    let stream = gpu.streams().acquire().unwrap();
    let tenant = gpu.tenant(|memory| memory).unwrap();
    let pinned = PinnedBuffer::<u8>::uninit(&tenant, &stream, 5 * MIB).unwrap();
    assert_eq!(gpu.pinned_budget().unwrap().reserved_bytes(), 5 << 20);
    drop((pinned, tenant, stream, gpu));
    rig.assert_clean();
}

#[test]
fn the_context_of_a_buffer_is_bounded_by_the_budget_and_so_is_a_copy_to_the_host() {
    let rig = Rig::new();
    let gpu = runtime(&rig);
    let budget = gpu.pinned_budget().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let slice = stream.stream().clone_htod(&vec![4u8; 3 * MIB]).unwrap();
    let adopted = DeviceBuffer::adopt(&gpu, &stream, slice).unwrap();
    let large = DeviceBuffer::<u8>::zeroed(&gpu, &stream, 9 * MIB).unwrap();
    let staging = PinnedBuffer::<u8>::uninit(&gpu, &stream, MIB).unwrap();

    let copied = dmr_testkit::block_on(adopted.to_host_async(&stream)).unwrap();
    assert!(copied.iter().all(|byte| *byte == 4));
    assert_eq!(budget.reserved_bytes(), 4 << 20);
    let refused = dmr_testkit::block_on(large.to_host_async(&stream)).unwrap_err();
    assert!(
        matches!(refused, BufferError::Resource(ResourceError::OutOfBudget { .. })),
        "{refused}"
    );
    let of_buffer = WriteCombinedBuffer::<u8>::uninit(large.context(), &stream, 2 * MIB).unwrap();
    assert_eq!(budget.reserved_bytes(), 6 << 20);
    assert_eq!(gpu.pinned_usage().live, 6 << 20);
    drop((copied.into_pinned(), of_buffer, staging, adopted, large));
    gpu.shutdown().unwrap();
    assert_eq!(budget.reserved_bytes(), 0);
    drop((stream, gpu));
    rig.assert_clean();
}

#[test]
fn a_shutdown_returns_the_segments_and_a_budget_has_its_bytes_again() {
    let rig = Rig::new();
    let gpu = runtime(&rig);
    let stream = gpu.streams().acquire().unwrap();
    for _ in 0..3 {
        let pinned = PinnedBuffer::<u8>::zeroed(&gpu, &stream, 5 * MIB).unwrap();
        let mut device = DeviceBuffer::<u8>::uninit(&gpu, &stream, 5 * MIB).unwrap();
        pinned.copy_to_device(&mut device, &stream).unwrap();
    }
    assert!(gpu.pinned_usage().reserved >= 5 << 20);
    gpu.shutdown().unwrap();
    let usage = gpu.pinned_usage();
    assert_eq!((usage.outstanding(), usage.reserved), (0, 0));
    assert_eq!(gpu.pinned_budget().unwrap().remaining(), 8 << 20);
    drop((stream, gpu));
    rig.assert_clean();
}

#[cfg(feature = "statistics")]
#[test]
fn statistics_count_pinned_memory_apart_by_kind() {
    use dmr::dmr_streams::PinnedKind;

    let rig = Rig::new();
    let gpu = DeviceRuntime::builder(rig.ordinal()).statistics().build().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let tag = AllocTag::new("staging");
    let pinned = PinnedBuffer::<u8>::uninit_tagged(&gpu, &stream, 1000, tag).unwrap();
    let combined = WriteCombinedBuffer::<u8>::uninit(&gpu, &stream, 500).unwrap();
    let device = DeviceBuffer::<u8>::uninit(&gpu, &stream, 70).unwrap();
    let current = |kind| gpu.pinned_statistics(kind).unwrap().snapshot().bytes.current;
    assert_eq!([PinnedKind::Cached, PinnedKind::WriteCombined].map(current), [1000, 500]);
    assert_eq!(gpu.statistics().unwrap().snapshot().bytes.current, 70);
    drop((pinned, combined, device, stream, gpu));
    rig.assert_clean();
}
