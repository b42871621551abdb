//! C4: a stream is adopted when it is first used, once under any race, and let go when it is
//! retired.

use std::sync::Barrier;
use std::thread;

use dmr_capi::*;

use crate::support::{Gpu, MIB, last_error, raw};

#[test]
fn c4_threads_that_use_a_new_stream_at_once_adopt_it_once() {
    const THREADS: usize = 8;
    let gpu = Gpu::with(|config| config.max_streams = 1);
    for _ in 0..20 {
        let stream = gpu.stream();
        let start = Barrier::new(THREADS);
        let work = || {
            let stream = raw(&stream);
            start.wait();
            let address = gpu.allocate(256, stream).unwrap();
            gpu.free(address).unwrap();
        };
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(work);
            }
        });
        gpu.retire(raw(&stream)).unwrap();
    }
    gpu.end();
}

#[test]
fn c4_a_retired_stream_makes_room_and_can_be_used_again() {
    let gpu = Gpu::with(|config| config.max_streams = 2);
    let [first, second, third] = [gpu.stream(), gpu.stream(), gpu.stream()];
    for stream in [&first, &second] {
        gpu.allocate(MIB, raw(stream)).unwrap();
    }
    assert_eq!(gpu.allocate(MIB, raw(&third)), Err(Status::Capacity));
    assert!(last_error().contains("retire"), "{}", last_error());
    assert_eq!(gpu.retire(raw(&first)), Ok(()));
    gpu.allocate(MIB, raw(&third)).unwrap();
    assert_eq!(gpu.allocate(MIB, raw(&first)), Err(Status::Capacity));
    assert_eq!(gpu.retire(raw(&second)), Ok(()));
    gpu.allocate(MIB, raw(&first)).unwrap();
    gpu.end();
}

#[test]
fn c4_a_stream_that_was_not_used_or_was_retired_is_retired_again() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    assert_eq!(gpu.retire(raw(&stream)), Ok(()));
    gpu.allocate(1, raw(&stream)).unwrap();
    assert_eq!(gpu.retire(raw(&stream)), Ok(()));
    assert_eq!(gpu.retire(raw(&stream)), Ok(()));
    gpu.end();
}

#[test]
fn c4_blocks_of_a_retired_stream_are_used_and_freed_in_order() {
    for backend in [DMR_BACKEND_POOL, DMR_BACKEND_ASYNC, DMR_BACKEND_DIRECT_TRACKED] {
        use_blocks_of_a_retired_stream(backend);
    }
}

fn use_blocks_of_a_retired_stream(backend: u32) {
    let gpu = Gpu::with(|config| config.backend = backend);
    let home = gpu.stream();
    let other = gpu.stream();
    let third = gpu.stream();
    let blocks = [(); 3].map(|()| gpu.allocate(MIB, raw(&home)).unwrap());
    for block in blocks {
        gpu.fill(block, MIB, raw(&home));
        gpu.record(block, raw(&home), DMR_ACCESS_WRITE).unwrap();
    }
    gpu.retire(raw(&home)).unwrap();
    drop(home);
    let [used, freed_on, left] = blocks;
    gpu.wait(used, raw(&other), DMR_ACCESS_WRITE).unwrap();
    gpu.fill(used, MIB, raw(&other));
    gpu.record(used, raw(&other), DMR_ACCESS_WRITE).unwrap();
    gpu.free(used).unwrap();
    gpu.wait(freed_on, raw(&other), DMR_ACCESS_READ).unwrap();
    gpu.read(freed_on, MIB, raw(&other));
    gpu.free_on(freed_on, raw(&other)).unwrap();
    let streams = [&other, &third, &third];
    for stream in streams {
        let again = gpu.allocate(MIB, raw(stream)).unwrap();
        gpu.fill(again, MIB, raw(stream));
    }
    assert_eq!(gpu.live().len(), 4);
    assert!(gpu.live().contains(&left));
    gpu.end();
}

#[test]
fn c4_a_stream_that_captures_is_refused_and_goes_on_capturing() {
    use dmr::cudarc::driver::sys::CUstreamCaptureMode as Mode;
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let other = gpu.stream();
    let address = gpu.allocate(MIB, raw(&stream)).unwrap();
    let elsewhere = gpu.allocate(MIB, raw(&other)).unwrap();
    stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    assert_eq!(gpu.allocate(MIB, raw(&stream)), Err(Status::StreamCapturing));
    assert_eq!(gpu.free(address), Err(Status::StreamCapturing));
    assert_eq!(gpu.free_on(elsewhere, raw(&stream)), Err(Status::StreamCapturing));
    assert_eq!(gpu.record(elsewhere, raw(&stream), DMR_ACCESS_READ), Err(Status::StreamCapturing));
    assert_eq!(gpu.wait(elsewhere, raw(&stream), DMR_ACCESS_READ), Err(Status::StreamCapturing));
    assert_eq!(gpu.retire(raw(&stream)), Err(Status::StreamCapturing));
    assert_eq!(gpu.destroy(), Err(Status::StreamCapturing));
    assert_eq!(gpu.live(), [address], "the block of the other stream was freed");
    let flags = dmr::cudarc::driver::sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    stream.end_capture(flags).unwrap();
    gpu.end();
}
