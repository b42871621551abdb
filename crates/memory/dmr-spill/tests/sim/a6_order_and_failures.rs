//! A6: both copies are ordered with all recorded uses, and no failed call loses a buffer or its
//! bytes.

use std::thread;

use crate::context::{BYTES, Below, Context, LEN, assert_all};
use dmr_buffer::{BufferError, DeviceBuffer, PinnedBuffer};
use dmr_core::{DeviceMemoryResource, ResourceError};
use dmr_launch::LaunchRecorder;
use dmr_pinned::PinnedPool;
use dmr_spill::SpillError;
use dmr_streams::DeviceContext;
use dmr_testkit::{Rig, for_each_driver_call};

/// Writes on one stream, spills, restores on another, reads on a third. Returns the reports of
/// races, and whether a call failed.
fn travel(rig: &Rig, ctx: &Context) -> Result<Vec<u32>, Box<dyn std::error::Error>> {
    let [written, restored, read] = [rig.stream(), rig.stream(), rig.stream()];
    let mut buffer = ctx.spill.insert(DeviceBuffer::<u32>::zeroed(ctx, &written, LEN)?).unwrap();
    rig.delay(&restored);
    buffer.on_device_mut(&written)?.fill(3, &restored)?;
    ctx.spill.free(BYTES)?;
    // The memory of the buffer is used again, by a stream that must wait for the copy.
    let mut other = DeviceBuffer::<u32>::uninit(ctx, &read, LEN)?;
    other.fill(4, &read)?;
    let guard = buffer.on_device(&restored)?;
    let host = guard.to_host(&read)?;
    drop((guard, other));
    Ok(host)
}

#[test]
fn each_wait_of_a_spill_and_a_restore_is_needed_and_is_there() {
    let waits = {
        let rig = Rig::simulated();
        let ctx = Context::new(&rig, Below::Pool, 2);
        let before = rig.universe().calls().count("cuStreamWaitEvent");
        assert!(travel(&rig, &ctx).unwrap().iter().all(|element| *element == 3));
        let waits = rig.universe().calls().count("cuStreamWaitEvent") - before;
        assert_eq!(rig.verdict(), Ok(()));
        ctx.assert_clean(rig);
        waits
    };
    assert!(waits >= 3, "{waits}");
    for left_out in 1..=waits {
        let rig = Rig::simulated();
        let ctx = Context::new(&rig, Below::Pool, 2);
        rig.universe().swallow_nth("cuStreamWaitEvent", left_out);
        let _ = travel(&rig, &ctx);
        assert!(rig.verdict().is_err(), "wait {left_out} of {waits} can be left out");
    }
}

#[test]
fn a_buffer_with_an_open_window_is_not_spilled_while_it_is_written() {
    let rig = Rig::simulated();
    let ctx = Context::new(&rig, Below::Async, 2);
    let stream = rig.stream();
    let mut buffer = ctx.spillable(&stream, 1);
    let launch = {
        let mut guard = buffer.on_device_mut(&stream).unwrap();
        let mut launch = LaunchRecorder::new_strict(&stream);
        launch.write(&mut *guard);
        launch.prepare(&ctx).unwrap()
    };
    let Err(SpillError::NotEnough { spilled: 0, problem: Some(problem), .. }) = ctx.spill.free(1)
    else {
        panic!("a launch is writing it");
    };
    let is_conflict =
        matches!(*problem, BufferError::Resource(ResourceError::WindowConflict { .. }));
    assert!(is_conflict, "{problem}");
    assert_eq!(ctx.spill.stats().cold.bytes, BYTES);
    launch.finish().unwrap();
    assert_eq!(ctx.spill.free(1).unwrap(), BYTES);

    let launch = {
        let guard = buffer.on_device(&stream).unwrap();
        let mut launch = LaunchRecorder::new_strict(&stream);
        launch.read(&guard);
        launch.prepare(&ctx).unwrap()
    };
    // The copy only reads, too; the memory is free once the window is closed.
    assert_eq!(ctx.spill.free(1).unwrap(), BYTES);
    ctx.resource().reap_pending().unwrap();
    assert_eq!(ctx.budget.reserved_bytes(), BYTES);
    launch.finish().unwrap();
    ctx.resource().reap_pending().unwrap();
    assert_eq!(ctx.budget.reserved_bytes(), 0);
    drop((buffer, stream));
    ctx.assert_clean(rig);
}

#[test]
fn pinned_memory_that_is_refused_leaves_the_buffers_on_the_device() {
    let rig = Rig::simulated();
    let ctx = Context::new(&rig, Below::Tracked, 2);
    let stream = rig.stream();
    let buffers = [1, 2].map(|value| ctx.spillable(&stream, value));
    let universe = rig.universe();
    (1..100).for_each(|call| universe.fail_nth("cuMemHostAlloc", call, 2));
    let tries = |request: &dyn Fn()| {
        let before = universe.calls().count("cuMemHostAlloc");
        request();
        universe.calls().count("cuMemHostAlloc") - before
    };
    let for_one = tries(&|| {
        PinnedBuffer::<u32>::uninit(&ctx, &stream, LEN).unwrap_err();
    });
    let for_both = tries(&|| {
        let refused = DeviceBuffer::<u32>::uninit(&ctx, &stream, LEN).unwrap_err();
        let is_budget = matches!(refused, BufferError::Resource(ResourceError::OutOfBudget { .. }));
        assert!(is_budget, "{refused}");
    });
    // The second buffer is as large as the first: for it, no memory is requested again.
    assert_eq!(for_both, for_one);
    assert_eq!(ctx.spill.stats().cold.buffers, 2);
    let Err(SpillError::NotEnough { problem: Some(problem), .. }) = ctx.spill.free(1) else {
        panic!("pinned memory is refused");
    };
    assert!(problem.to_string().contains("cuMemHostAlloc"), "{problem}");
    universe.clear_faults();
    drop(DeviceBuffer::<u32>::uninit(&ctx, &stream, LEN).unwrap());
    for (buffer, value) in buffers.iter().zip(1..) {
        assert_all(&buffer.on_device(&stream).unwrap(), value, &stream);
    }
    drop((buffers, stream));
    ctx.assert_clean(rig);
}

#[test]
fn an_allocation_waits_for_what_another_thread_is_spilling() {
    // Whether a spill that ended too early would be noticed depends on the threads.
    (0..20).for_each(|_| wait_for_a_spill());
}

fn wait_for_a_spill() {
    let rig = Rig::simulated();
    let ctx = Context::new(&rig, Below::Tracked, 2);
    let stream = rig.stream();
    let other = rig.stream();
    let mut buffers = [1, 2].map(|value| ctx.spillable(&stream, value));
    let guard = buffers[1].on_device_mut(&stream).unwrap();
    let hold = rig.universe().hold_nth("cuMemcpyDtoHAsync_v2", 1);
    thread::scope(|scope| {
        let spilling = scope.spawn(|| ctx.spill.free(BYTES).unwrap());
        hold.wait_until_held();
        // Nothing is cold: one buffer is in use, the other is on its way.
        let allocating = scope.spawn(|| ctx.buffer(&other, 5));
        let waiting = std::time::Instant::now();
        while waiting.elapsed().as_millis() < 10 {
            assert!(!allocating.is_finished(), "refused, although memory was about to be free");
            thread::yield_now();
        }
        hold.release();
        assert_eq!(spilling.join().unwrap(), BYTES);
        assert_all(&allocating.join().unwrap(), 5, &other);
    });
    drop(guard);
    drop((buffers, stream, other));
    ctx.assert_clean(rig);
}

#[test]
fn no_driver_call_that_fails_loses_a_buffer_or_its_bytes() {
    let prepare = |rig: &Rig| (Context::new(rig, Below::Tracked, 2), rig.stream());
    let failed = for_each_driver_call(999, prepare, |rig, (ctx, stream)| {
        let make = |value: u32| {
            let once = || DeviceBuffer::from_host(&ctx, &stream, &vec![value; LEN]);
            let buffer = once().or_else(|_| once()).expect("only one call fails");
            ctx.spill.insert(buffer).expect("tracked")
        };
        let buffers = [make(1), make(2), make(3)];
        for (buffer, value) in buffers.iter().zip(1..) {
            let guard = buffer.on_device(&stream).or_else(|_| buffer.on_device(&stream));
            let guard = guard.expect("only one call fails");
            let host = guard.to_host(&stream).or_else(|_| guard.to_host(&stream));
            assert_eq!(host.expect("only one call fails"), vec![value; LEN]);
        }
        let pinned = PinnedBuffer::from_slice(&ctx, &stream, &[1_u8]);
        drop((pinned, buffers, stream));
        let failures = dmr_buffer::failures::take_drop_failures();
        failures.into_iter().for_each(|failure| failure.retry().expect("only one call fails"));
        let resource = ctx.resource();
        resource.reap_pending().or_else(|_| resource.reap_pending()).expect("a reap");
        PinnedPool::of(rig.streams())
            .reap_pending()
            .or_else(|_| PinnedPool::of(rig.streams()).reap_pending())
            .expect("a reap");
        assert_eq!(resource.bytes_outstanding(), 0);
        assert_eq!(ctx.spill.stats().cold.buffers, 0);
        let trim = || dmr_buffer::pinned::trim_pinned(&ctx, 0);
        trim().or_else(|_| trim()).expect("a trim");
        drop(ctx);
        let verdict = rig.universe().finish();
        assert!(verdict.is_clean(), "{verdict}");
    });
    assert!(failed >= 20, "{failed} calls were failed");
}
