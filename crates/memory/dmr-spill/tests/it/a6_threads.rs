//! A6: several threads use, restore and spill the same buffers.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::context::{ALL, BYTES, Below, Context, assert_all};
use dmr_buffer::DeviceBuffer;
use dmr_streams::DeviceContext;
use dmr_testkit::Rig;

#[test]
fn threads_that_request_one_spilled_buffer_restore_it_once() {
    let rig = Rig::new();
    let ctx = Context::new(&rig, Below::Pool, 4);
    let stream = rig.stream();
    let buffer = ctx.spillable(&stream, 9);
    for round in 1..20 {
        assert_eq!(ctx.spill.free(BYTES).unwrap(), BYTES);
        let start = Barrier::new(3);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let stream = ctx.streams().acquire().unwrap();
                    start.wait();
                    assert_all(&buffer.on_device(&stream).unwrap(), 9, &stream);
                });
            }
        });
        assert_eq!(ctx.spill.stats().restored.buffers, round);
    }
    drop((buffer, stream));
    ctx.assert_clean(rig);
}

/// 4 threads need 2 buffers each at a time, and there is room for 9 of 12.
#[test]
fn threads_that_need_more_than_there_is_spill_each_others_cold_buffers() {
    for below in ALL {
        let rig = Rig::new();
        let ctx = Context::new(&rig, below, 9);
        let stream = rig.stream();
        let shared: Vec<_> = (0..4).map(|value| ctx.spillable(&stream, value)).collect();
        let refused = AtomicUsize::new(0);
        thread::scope(|scope| {
            for thread in 0..4_u32 {
                let ctx = &ctx;
                let shared = &shared;
                let refused = &refused;
                scope.spawn(move || {
                    let stream = ctx.streams().acquire().unwrap();
                    let mut own = [0, 1]
                        .map(|k| (100 * thread + k, ctx.spillable(&stream, 100 * thread + k)));
                    for round in 0..30 {
                        let (value, own) = &mut own[round % 2];
                        let with = &shared[(round + thread as usize) % 4];
                        let Ok(read) = with.on_device(&stream) else {
                            refused.fetch_add(1, Ordering::Relaxed);
                            continue;
                        };
                        let mut written = own.on_device_mut(&stream).unwrap();
                        assert_all(&written, *value, &stream);
                        *value += 1000;
                        written.fill(*value, &stream).unwrap();
                        assert_all(&read, (round as u32 + thread) % 4, &stream);
                    }
                });
            }
        });
        assert_eq!(refused.load(Ordering::Relaxed), 0, "{below:?}");
        let stats = ctx.spill.stats();
        assert!(stats.spilled.buffers > 0, "{below:?}: {stats:?}");
        drop((shared, stream));
        ctx.assert_clean(rig);
    }
}

/// Allocations that no one restores, beside threads that restore: each is served by spilling.
#[test]
fn allocations_of_other_threads_spill_while_buffers_are_restored() {
    let rig = Rig::new();
    let ctx = Context::new(&rig, Below::Async, 6);
    let stream = rig.stream();
    let buffers: Vec<_> = (0..6).map(|value| ctx.spillable(&stream, value)).collect();
    thread::scope(|scope| {
        for thread in 0..2 {
            let ctx = &ctx;
            let buffers = &buffers;
            scope.spawn(move || {
                let stream = ctx.streams().acquire().unwrap();
                for round in 0..40 {
                    let value = (3 * thread + round) % 6;
                    assert_all(&buffers[value].on_device(&stream).unwrap(), value as u32, &stream);
                }
            });
            scope.spawn(move || {
                let stream = ctx.streams().acquire().unwrap();
                for value in 0..40 {
                    let temporary: DeviceBuffer<u32> = ctx.buffer(&stream, value);
                    assert_all(&temporary, value, &stream);
                }
            });
        }
    });
    assert!(ctx.spill.stats().spilled.buffers > 0);
    drop((buffers, stream));
    ctx.assert_clean(rig);
}
