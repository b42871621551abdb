//! Blocks: their sizes, their accounting, and that `deallocate` waits for nothing and frees nothing
//! that is still in use.

use std::sync::mpsc::channel;
use std::time::Duration;

use crate::support::{TAG, resource};
use dmr_core::error::SizeProblem;
use dmr_core::{
    Access, BlockState, BlockUse, DeviceMemoryResource, DeviceOps, ResourceError, StreamId, Usage,
    UseTrackingExt, VirtualMemory,
};
use dmr_testkit::{HeldStream, Rig};

#[test]
fn blocks_are_as_large_as_asked_and_reserved_in_pages() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let page = resource.granularity() as usize;
    for (bytes, pages) in [(1, 1), (page - 1, 1), (page, 1), (page + 1, 2), (5 * page, 5)] {
        let block = resource.allocate(bytes, StreamId::DEFAULT, TAG).unwrap();
        assert_eq!((block.bytes(), block.reserved_bytes()), (bytes, pages * page));
        assert!(block.ptr().is_multiple_of(block.alignment() as u64));
        assert_eq!(block.alloc_stream(), rig.streams().default_stream());
        let usage = resource.usage();
        assert_eq!((usage.live, usage.reserved), (bytes as u64, (pages * page) as u64));
        assert_eq!(resource.deallocate(block).unwrap(), BlockState::Retired);
        resource.reap_pending().unwrap();
    }
    assert_eq!(resource.usage().reserved, 0);
    drop(resource);
    rig.assert_clean();
}

#[test]
fn impossible_sizes_are_refused_without_a_driver_call() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let refused = |bytes| match resource.allocate(bytes, StreamId::DEFAULT, TAG).unwrap_err() {
        ResourceError::InvalidSize { requested, problem, .. } if requested == bytes => problem,
        other => panic!("{other}"),
    };
    let calls = || rig.simulator().map_or(0, |universe| universe.calls().total());
    let before = calls();
    assert_eq!(refused(0), SizeProblem::Zero);
    for k in [0, 1, 254, (1 << 21) - 2] {
        assert_eq!(refused(usize::MAX - k), SizeProblem::Overflow, "usize::MAX - {k}");
    }
    let device_bytes = usize::try_from(rig.device().total_memory()).unwrap();
    for bytes in [device_bytes + 1, device_bytes * 2] {
        assert!(matches!(refused(bytes), SizeProblem::BeyondDevice { .. }), "{bytes}");
    }
    assert_eq!((calls(), resource.usage()), (before, Usage::default()));
}

#[test]
fn deallocate_does_not_wait_for_device_work_and_nothing_is_freed_before_it_is_done() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let stream = rig.stream();
    let block = resource.allocate(4096, stream.id(), TAG).unwrap();
    let id = block.id();
    // The first check loads its kernel, which waits for the device.
    rig.ops().fill_pattern(&block, 0..4096, 6, stream.id()).unwrap();
    rig.ops().check_pattern(&block, 0..4096, 6, stream.id(), 0).unwrap();
    let held = HeldStream::hold(rig.streams(), &stream);
    rig.ops().fill_pattern(&block, 0..4096, 7, stream.id()).unwrap();
    rig.ops().check_pattern(&block, 0..4096, 7, stream.id(), 0).unwrap();
    let (sent, received) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| sent.send(resource.deallocate(block).map(|_| resource.try_reap())));
        let freed = received.recv_timeout(Duration::from_secs(20));
        // Before an assertion: the other thread may wait for the stream.
        let is_retired = resource.is_retired(id);
        held.release();
        assert_eq!(freed.expect("it waits for the device").unwrap(), Ok(0));
        assert!(is_retired);
    });
    assert_eq!((resource.reap_pending().unwrap(), resource.usage().retired), (4096, 0));
    assert!(!resource.is_retired(id));
    assert_eq!((resource.usage().reserved, resource.usage().total_freed), (0, 4096));
    drop((held, resource, stream));
    rig.assert_clean();
}

#[test]
fn what_was_retired_makes_room_for_what_is_wanted() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let stream = rig.stream();
    // More than half of what is free: two of them never fit.
    let (free, _) = rig.device().memory_info().unwrap();
    let bytes = usize::try_from(free / 3 * 2).unwrap();
    for _ in 0..3 {
        let block = resource.allocate(bytes, stream.id(), TAG).unwrap();
        rig.delay(&stream);
        resource.deallocate(block).unwrap();
    }
    drop((resource, stream));
    rig.assert_clean();
}

#[test]
fn a_size_that_the_device_has_but_not_free_is_out_of_memory_with_the_figures() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let held = resource.allocate(1 << 20, StreamId::DEFAULT, TAG).unwrap();
    let before = resource.usage();
    let bytes = usize::try_from(rig.device().total_memory()).unwrap();
    match resource.allocate(bytes, StreamId::DEFAULT, TAG).unwrap_err() {
        ResourceError::OutOfMemory { requested, free, total, live, .. } => {
            assert_eq!((requested, live), (bytes, 1 << 20));
            assert!(free < total && total > 0, "{free} of {total}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(resource.usage(), before);
    resource.deallocate(held).unwrap();
    drop(resource);
    rig.assert_clean();
}

#[test]
fn threads_leave_the_accounting_exact() {
    let rig = Rig::new();
    let resource = resource(&rig);
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let resource = &resource;
            scope.spawn(move || {
                let mut held = Vec::new();
                for round in 0..30_usize {
                    let bytes = 1 + (thread * 30 + round) * 7;
                    held.push(resource.allocate(bytes, StreamId::DEFAULT, TAG).unwrap());
                    if round % 3 != 0 {
                        resource.deallocate(held.swap_remove(round % held.len())).unwrap();
                    }
                    if round % 10 == thread {
                        resource.reap_pending().unwrap();
                    }
                }
                for block in held {
                    resource.deallocate(block).unwrap();
                }
            });
        }
    });
    let asked: usize = (0..240).map(|i| 1 + i * 7).sum();
    let usage = resource.usage();
    assert_eq!((usage.live, usage.total_allocated), (0, asked as u64));
    assert_eq!(usage.retired, usage.total_allocated - usage.total_freed);
    resource.reap_pending().unwrap();
    assert_eq!((resource.usage().reserved, resource.usage().total_freed), (0, asked as u64));
    drop(resource);
    rig.assert_clean();
}

#[test]
fn declaring_a_use_is_refused_and_a_block_of_another_resource_comes_back() {
    let rig = Rig::new();
    let ours = resource(&rig);
    let theirs = resource(&rig);
    let block = theirs.allocate(64, StreamId::DEFAULT, TAG).unwrap();
    let uses = [BlockUse::new(block.id(), Access::Write)];
    let refused = theirs.prepare_uses(&uses, rig.streams().default_stream()).unwrap_err();
    assert!(matches!(refused, ResourceError::StreamMisuse { .. }), "{refused}");
    assert!(!theirs.supports_block_use_tracking());
    let refused = ours.deallocate(block).unwrap_err();
    assert!(matches!(refused.error, ResourceError::ForeignBlock { .. }), "{refused}");
    theirs.deallocate(refused.block).unwrap();
    assert_eq!(
        format!("{ours:?} {ours}"),
        format!("Virtual(device {0}) Virtual(device {0})", rig.ordinal())
    );
    drop((ours, theirs));
    rig.assert_clean();
}

#[test]
fn a_resource_dropped_on_a_thread_that_never_used_cuda_frees_there_after_the_work() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let stream = rig.stream();
    let block = resource.allocate(100, stream.id(), TAG).unwrap();
    rig.delay(&stream);
    rig.ops().fill_pattern(&block, 0..100, 1, stream.id()).unwrap();
    resource.deallocate(block).unwrap();
    drop(stream);
    std::thread::scope(|scope| {
        scope.spawn(move || drop(resource));
    });
    rig.assert_clean();
}
