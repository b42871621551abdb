//! An allocation does not miss memory that another thread is returning to upstream.

#![allow(unsafe_code, reason = "captures begin and end in the driver")]

use std::thread;
use std::time::{Duration, Instant};

use crate::support::stage::{ALL, Stage, tight};
use crate::support::{MIB, UPSTREAMS, Upstream};
use cudarc::driver::{result, sys};
use dmr_core::{Access, BlockState, DeviceMemoryResource, ResourceError, StreamId};
use dmr_pool::PoolConfig;

/// Holds a thread that returns all of the pool's memory to upstream inside this driver call, while
/// another thread allocates all of it.
fn an_allocation_waits_for_memory_that_is_being_freed(upstream: Upstream, call: &str) {
    let stage = Stage::new(upstream, tight());
    let [a, b, _] = stage.streams();
    stage.pass(a, ALL, 1);
    stage.rig.device().synchronize().unwrap();
    thread::scope(|scope| {
        let hold = stage.universe().hold_nth(call, 1);
        let trims = scope.spawn(|| stage.pool.trim_to(0));
        hold.wait_until_held();
        let allocates = scope.spawn(|| stage.try_allocate(b, ALL));
        // Long enough for a refusal.
        thread::sleep(Duration::from_millis(50));
        hold.release();
        trims.join().unwrap().unwrap();
        stage.free(allocates.join().unwrap().unwrap());
    });
    assert_eq!(stage.pool.usage().outstanding(), 0);
    stage.end();
}

#[test]
fn a_segment_on_its_way_upstream_is_waited_for() {
    an_allocation_waits_for_memory_that_is_being_freed(Upstream::Async, "cuMemFreeAsync");
}

#[test]
fn a_page_that_is_unmapped_is_waited_for() {
    an_allocation_waits_for_memory_that_is_being_freed(Upstream::Virtual, "cuMemUnmap");
}

#[test]
fn a_page_that_is_destroyed_is_waited_for() {
    an_allocation_waits_for_memory_that_is_being_freed(Upstream::Virtual, "cuMemRelease");
}

/// A reap frees a hundred blocks whose windows have closed, and is held in a query. Another thread
/// needs the memory of the last one.
#[test]
fn retired_blocks_that_a_reap_frees_are_waited_for() {
    for upstream in [Upstream::Direct, Upstream::Async] {
        let config = PoolConfig::fast().with_growth(2 * MIB).with_maximum_size(4 * MIB);
        let stage = Stage::new(upstream, config);
        let [a, b, c] = stage.streams();
        let mut blocks: Vec<_> = (0..100).map(|_| stage.allocate(a, 4096)).collect();
        blocks.push(stage.allocate(a, ALL));
        let mut windows = Vec::new();
        for block in blocks {
            windows.push(stage.open(b, &block, Access::Write));
            stage.fill(b, &block, 1);
            stage.universe().region_freed(block.ptr());
            assert_eq!(stage.pool.deallocate(block).unwrap(), BlockState::Retired);
        }
        for tokens in windows {
            // The pool is not called.
            stage.rig.streams().uses().finish(tokens).unwrap();
        }
        thread::scope(|scope| {
            let hold = stage.universe().hold_nth("cuEventQuery", 1);
            let reaps = scope.spawn(|| stage.pool.try_reap());
            hold.wait_until_held();
            let allocates = scope.spawn(|| stage.try_allocate(c, ALL));
            // Long enough for a refusal.
            thread::sleep(Duration::from_millis(200));
            hold.release();
            reaps.join().unwrap().unwrap();
            let block = allocates.join().unwrap();
            stage.free(block.expect("the reap had removed the block from the retired ones"));
        });
        stage.end();
    }
}

/// A stream is made to wait for the pool's only chunk, and begins to capture. Its allocation is
/// refused; until then it has the chunk, which another thread needs.
#[test]
fn a_chunk_that_was_found_for_a_stream_that_begins_to_capture_is_waited_for() {
    for upstream in UPSTREAMS {
        let stage = || {
            let stage = Stage::new(upstream, tight());
            for stream in stage.streams() {
                // Lends it: calls look for captures on it.
                drop(stage.rig.streams().resolve(stream).unwrap());
            }
            stage.pass(stage.streams()[0], ALL, 1);
            stage
        };
        let counted = stage();
        let queries = counted.calls("cuStreamIsCapturing", || {
            counted.free(counted.allocate(counted.streams()[1], ALL));
        });
        counted.end();
        let stage = stage();
        let [_, b, c] = stage.streams();
        thread::scope(|scope| {
            // The last query is that of the free.
            let hold = stage.universe().hold_nth("cuStreamIsCapturing", queries - 1);
            let captures = scope.spawn(|| stage.try_allocate(b, ALL));
            hold.wait_until_held();
            begin_capture(&stage, b);
            let allocates = scope.spawn(|| stage.try_allocate(c, ALL));
            // Long enough for a refusal.
            thread::sleep(Duration::from_millis(50));
            hold.release();
            let refused = captures.join().unwrap().map(|block| block.bytes()).unwrap_err();
            assert!(matches!(refused, ResourceError::StreamCapturing { .. }), "{refused}");
            let block = allocates.join().unwrap();
            stage.free(block.unwrap_or_else(|error| panic!("{upstream:?}: {error}")));
        });
        end_capture(&stage, b);
        stage.end();
    }
}

fn begin_capture(stage: &Stage, stream: StreamId) {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let stream = stage.rig.streams().resolve(stream).unwrap().cu_stream();
    // SAFETY: the lease keeps the stream alive.
    unsafe { result::stream::begin_capture(stream, mode) }.unwrap();
}

fn end_capture(stage: &Stage, stream: StreamId) {
    let stream = stage.rig.streams().resolve(stream).unwrap().cu_stream();
    // SAFETY: the lease keeps the stream alive.
    unsafe { result::stream::end_capture(stream) }.unwrap();
}

#[test]
fn an_allocation_does_not_wait_if_no_memory_is_being_freed() {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, tight());
        let [a, b, _] = stage.streams();
        stage.pass(a, ALL, 1);
        stage.rig.device().synchronize().unwrap();
        stage.pool.trim_to(0).unwrap();
        let block = stage.allocate(a, ALL);
        let before = Instant::now();
        stage.try_allocate(b, ALL).unwrap_err();
        assert!(before.elapsed() < Duration::from_secs(10), "{upstream:?}");
        stage.free(block);
        stage.end();
    }
}

/// The stream cannot be made to wait for the pending memory, so the host waits for it: then it is
/// free, and nothing else is pending.
#[test]
fn memory_that_the_host_has_waited_for_is_found() {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, tight());
        let [a, b, _] = stage.streams();
        let held = stage.allocate(a, ALL / 2);
        let block = stage.allocate(a, ALL / 2);
        stage.write(b, &block, 1);
        stage.free(block);
        for n in 1..=8 {
            stage.universe().fail_nth("cuStreamWaitEvent", n, 999);
        }
        let block = stage.try_allocate(a, ALL / 2);
        [block.unwrap_or_else(|error| panic!("{upstream:?}: {error}")), held]
            .into_iter()
            .for_each(|block| stage.free(block));
        stage.universe().clear_faults();
        stage.end();
    }
}
