//! D4: in a forked child nothing is spilled or restored, and no call waits for a lock of the
//! parent's threads.

#![cfg(unix)]
#![allow(unsafe_code, reason = "forks")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::context::{BYTES, Below, Context};
use dmr_spill::SpillStats;
use dmr_streams::DeviceContext;
use dmr_testkit::{Rig, exit_code};

#[test]
fn a_forked_child_spills_nothing_and_does_not_hang() {
    let rig = Rig::simulated();
    let ctx = Context::new(&rig, Below::Pool, 4);
    let stream = rig.stream();
    let mut own = Some(ctx.spillable(&stream, 1));
    let shared = ctx.spillable(&stream, 2);
    let mut written = ctx.spillable(&stream, 3);
    let mut spare = Some(ctx.buffer(&stream, 4));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let stream = ctx.streams().acquire().unwrap();
            while !is_done.load(Ordering::Relaxed) {
                let _ = ctx.spill.free(BYTES);
                drop(shared.on_device(&stream).unwrap());
            }
        });
        threads.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                assert!(ctx.spill.stats().cold.buffers <= 3);
            }
        });
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
            // SAFETY: the child makes a few calls and ends.
            let child = unsafe { libc::fork() };
            assert!(child >= 0, "fork");
            if child == 0 {
                let inserted = spare.take().map(|spare| ctx.spill.insert(spare).is_ok());
                let calls = [
                    inserted == Some(false),
                    ctx.spill.free(1).is_err(),
                    shared.on_device(&stream).is_err(),
                    written.on_device_mut(&stream).is_err(),
                    !shared.is_spilled(),
                    ctx.spill.stats() == SpillStats::default(),
                ];
                drop(own.take());
                // SAFETY: ends the child, without the parent's handlers.
                unsafe { libc::_exit(i32::from(calls.contains(&false))) };
            }
            let code = exit_code(child);
            if code != Some(0) {
                is_done.store(true, Ordering::Relaxed);
                panic!("the child failed or hung: {code:?}");
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    drop((own, shared, written, spare, stream));
    ctx.assert_clean(rig);
}
