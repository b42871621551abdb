//! C5: a call that fails changes nothing, a block is freed once, and a destroyed runtime leaves
//! nothing behind.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dmr_capi::*;
use dmr_testkit::{Rig, for_each_driver_call};

use crate::support::{Calls, Gpu, MIB, last_error, raw, stream_of};

/// `CUDA_ERROR_NOT_SUPPORTED`, which does not lose the device.
const REFUSED: i32 = 801;

/// Makes a call, and once more if it fails. Calls `unchanged` in between.
#[track_caller]
fn twice<T>(call: impl Fn() -> Result<T, Status>, unchanged: impl Fn()) -> T {
    match call() {
        Ok(value) => value,
        Err(status) => {
            assert_ne!(status, Status::Panic, "{}", last_error());
            assert!(!last_error().is_empty());
            unchanged();
            call().unwrap_or_else(|status| panic!("again {status:?}: {}", last_error()))
        }
    }
}

#[test]
fn c5_each_driver_call_may_fail() {
    let backends = [DMR_BACKEND_POOL, DMR_BACKEND_ASYNC, DMR_BACKEND_DIRECT_TRACKED];
    for backend in backends {
        let prepare = |rig: &Rig| {
            let streams = [(); 2].map(|()| stream_of(rig.device().context()));
            (Calls::on(rig, |config| config.backend = backend), streams)
        };
        let failed = for_each_driver_call(REFUSED, prepare, |_, gpu| {
            let (gpu, [home, other]) = gpu;
            let home = raw(&home);
            let other = raw(&other);
            let is_live = |expected: &[Address]| assert_eq!(gpu.live(), expected);
            let first = twice(|| gpu.allocate(MIB, home), || is_live(&[]));
            twice(|| gpu.record(first, home, DMR_ACCESS_WRITE), || is_live(&[first]));
            twice(|| gpu.wait(first, other, DMR_ACCESS_READ), || is_live(&[first]));
            twice(|| gpu.record(first, other, DMR_ACCESS_READ), || is_live(&[first]));
            twice(|| gpu.free(first), || is_live(&[first]));
            assert_eq!(gpu.free(first), Err(Status::UnknownAddress));
            let second = twice(|| gpu.allocate(MIB, other), || is_live(&[]));
            twice(|| gpu.free_on(second, home), || is_live(&[second]));
            twice(|| gpu.retire(home), || is_live(&[]));
            let left = twice(|| gpu.allocate(MIB, other), || is_live(&[]));
            assert_ne!(left, 0);
            twice(|| gpu.destroy(), || {});
            assert_eq!(gpu.destroy(), Err(Status::UnknownRuntime));
        });
        assert!(failed > 20, "{failed} calls of backend {backend}");
    }
}

#[test]
fn c5_of_threads_that_free_one_block_one_succeeds() {
    const THREADS: usize = 4;
    const BLOCKS: usize = 500;
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let blocks: Vec<_> = (0..BLOCKS).map(|_| gpu.allocate(256, raw(&stream)).unwrap()).collect();
    let start = Barrier::new(THREADS);
    let freed = AtomicUsize::new(0);
    let work = || {
        let stream = raw(&stream);
        start.wait();
        for (at, block) in blocks.iter().enumerate() {
            let outcome = match at % 2 {
                0 => gpu.free(*block),
                _ => gpu.free_on(*block, stream),
            };
            match outcome {
                Ok(()) => _ = freed.fetch_add(1, Ordering::Relaxed),
                Err(status) => assert_eq!(status, Status::UnknownAddress, "{}", last_error()),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    assert_eq!(freed.into_inner(), BLOCKS);
    assert_eq!(gpu.usage().live, 0);
    gpu.end();
}

#[test]
fn c5_an_address_that_is_allocated_again_at_once_is_a_new_block() {
    const THREADS: usize = 4;
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let work = || {
        let stream = raw(&stream);
        for _ in 0..2_000 {
            let address = gpu.allocate(256, stream).unwrap();
            gpu.free(address).unwrap_or_else(|status| panic!("{status:?}: {}", last_error()));
        }
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    let usage = gpu.usage();
    assert_eq!((usage.live, usage.total_freed), (0, 4 * 2_000 * 256));
    gpu.end();
}

#[test]
fn c5_uses_of_several_threads_wait_for_each_other() {
    const THREADS: usize = 4;
    let gpu = Gpu::new();
    let home = gpu.stream();
    let block = gpu.allocate(256, raw(&home)).unwrap();
    let work = || {
        let stream = gpu.stream();
        for _ in 0..200 {
            gpu.record(block, raw(&stream), DMR_ACCESS_WRITE)
                .unwrap_or_else(|status| panic!("{status:?}: {}", last_error()));
        }
        gpu.retire(raw(&stream)).unwrap();
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    gpu.free(block).unwrap();
    gpu.end();
}

/// The window of a use that is being recorded is open while its stream is made to wait.
#[test]
fn c5_a_use_waits_for_one_that_another_thread_is_recording() {
    let gpu = Gpu::new();
    let streams = [gpu.stream(), gpu.stream(), gpu.stream()];
    let [home, first, second] = streams.each_ref().map(|stream| raw(stream) as usize);
    let stream = |address: usize| std::ptr::with_exposed_provenance_mut(address);
    let block = gpu.allocate(256, stream(home)).unwrap();
    gpu.fill(block, 256, stream(home));
    gpu.record(block, stream(home), DMR_ACCESS_WRITE).unwrap();
    // The streams are adopted before.
    for other in [first, second] {
        let address = gpu.allocate(256, stream(other)).unwrap();
        gpu.free(address).unwrap();
    }
    let hold = gpu.rig.universe().hold_nth("cuStreamWaitEvent", 1);
    thread::scope(|scope| {
        let held = scope.spawn(|| gpu.record(block, stream(first), DMR_ACCESS_WRITE));
        hold.wait_until_held();
        let other = scope.spawn(|| gpu.record(block, stream(second), DMR_ACCESS_WRITE));
        thread::sleep(Duration::from_millis(100));
        assert!(!other.is_finished());
        hold.release();
        assert_eq!(held.join().unwrap(), Ok(()));
        assert_eq!(other.join().unwrap(), Ok(()));
    });
    gpu.free(block).unwrap();
    gpu.end();
}

#[test]
fn c5_a_runtime_is_destroyed_with_blocks_left_and_calls_in_progress() {
    const THREADS: usize = 4;
    for _ in 0..20 {
        let gpu = Gpu::new();
        let streams = [(); THREADS].map(|()| gpu.stream());
        let start = Barrier::new(THREADS + 1);
        thread::scope(|scope| {
            for stream in &streams {
                let gpu = &gpu;
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    loop {
                        match gpu.allocate(4096, raw(stream)) {
                            Ok(_left) => {}
                            Err(Status::UnknownRuntime) => return,
                            // The destruction has retired the stream just now.
                            Err(status) => {
                                assert_eq!(status, Status::StreamMisuse, "{}", last_error());
                            }
                        }
                    }
                });
            }
            start.wait();
            thread::yield_now();
            assert_eq!(gpu.destroy(), Ok(()), "{}", last_error());
        });
        let Gpu { rig, .. } = gpu;
        rig.assert_clean();
    }
}

#[test]
fn c5_on_a_lost_device_blocks_are_freed_and_the_runtime_destroyed() {
    let rig = Rig::simulated();
    let gpu = Calls::on(&rig, |_| {});
    let stream = stream_of(rig.device().context());
    let first = gpu.allocate(MIB, raw(&stream)).unwrap();
    let left = gpu.allocate(MIB, raw(&stream)).unwrap();
    rig.universe().lose_device(0, 700);
    assert!(matches!(
        (gpu.record(first, raw(&stream), DMR_ACCESS_READ), gpu.allocate(MIB, raw(&stream))),
        (Err(_), Err(Status::DeviceLost))
    ));
    assert_eq!(gpu.free(first), Ok(()));
    assert_eq!(gpu.live(), [left]);
    assert_eq!(gpu.destroy(), Ok(()));
    assert_eq!(gpu.destroy(), Err(Status::UnknownRuntime));
}
