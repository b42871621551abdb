//! C8: spillable buffers leave the device when memory runs out, except while they are pinned, and
//! have their bytes when they are pinned again.

use std::ptr;

use dmr::cudarc::driver::sys;
use dmr_capi::*;
use dmr_testkit::{Rig, for_each_driver_call};

use crate::support::{Calls, Gpu, MIB, checked, last_error, raw, stream_of};

const BYTES: usize = 8 * MIB;

fn spilling(config: &mut Config) {
    config.spill = 1;
    config.budget_bytes = 64 * MIB as u64;
    config.page_bytes = 2 * MIB as u64;
}

fn reap(gpu: &Calls) -> Result<(), Status> {
    // SAFETY: no number is written.
    checked(unsafe { dmr_runtime_reap(gpu.handle, 1, ptr::null_mut()) })
}

#[test]
fn c8_more_buffers_than_the_budget_holds_keep_their_bytes() {
    let gpu = Gpu::with(spilling);
    let writer = gpu.stream();
    let writer = raw(&writer);
    let reader = gpu.stream();
    let reader = raw(&reader);
    let buffers = (0..16_u8).map(|value| {
        let buffer = gpu.create_spillable(BYTES, writer).unwrap();
        let address = gpu.pin(buffer, writer).unwrap();
        gpu.fill_with(value, address, BYTES, writer);
        gpu.record(address, writer, DMR_ACCESS_WRITE).unwrap();
        gpu.unpin(buffer).unwrap();
        buffer
    });
    let buffers: Vec<_> = buffers.collect();
    let usage = gpu.usage();
    assert!(usage.spilled >= 8 * BYTES as u64, "{usage:?}");
    assert!(usage.live + usage.spilled >= 16 * BYTES as u64, "{usage:?}");
    for (buffer, value) in buffers.iter().zip(0..) {
        let address = gpu.pin(*buffer, reader).unwrap();
        gpu.wait(address, reader, DMR_ACCESS_READ).unwrap();
        assert_eq!(gpu.content(address, BYTES, reader), vec![value; BYTES]);
        gpu.record(address, reader, DMR_ACCESS_READ).unwrap();
        gpu.unpin(*buffer).unwrap();
    }
    for buffer in &buffers[..8] {
        gpu.destroy_spillable(*buffer).unwrap();
        assert_eq!(gpu.destroy_spillable(*buffer), Err(Status::UnknownAddress));
    }
    gpu.end();
}

#[test]
fn c8_a_pinned_buffer_stays_where_it_is() {
    let gpu = Gpu::with(spilling);
    let stream = gpu.stream();
    let stream = raw(&stream);
    let cold = gpu.create_spillable(BYTES, stream).unwrap();
    let address = gpu.pin(cold, stream).unwrap();
    gpu.fill(address, BYTES, stream);
    gpu.record(address, stream, DMR_ACCESS_WRITE).unwrap();
    gpu.unpin(cold).unwrap();
    let pinned = gpu.create_spillable(BYTES, stream).unwrap();
    let address = gpu.pin(pinned, stream).unwrap();
    assert_eq!(gpu.pin(pinned, stream), Ok(address));
    gpu.unpin(pinned).unwrap();
    gpu.fill(address, BYTES, stream);
    let large = gpu.allocate(4 * BYTES, stream).unwrap();
    let larger = gpu.allocate(2 * BYTES, stream).unwrap();
    assert_eq!(gpu.usage().spilled, BYTES as u64, "the cold one");
    assert_eq!(gpu.allocate(BYTES, stream), Err(Status::OutOfBudget));
    assert_eq!(gpu.pin(cold, stream), Err(Status::OutOfBudget));
    assert!(last_error().contains("cannot be restored"), "{}", last_error());
    gpu.record(address, stream, DMR_ACCESS_WRITE).unwrap();
    gpu.unpin(pinned).unwrap();
    assert!(gpu.pin(cold, stream).is_ok());
    assert_eq!(gpu.usage().spilled, BYTES as u64, "the other one");
    gpu.free(large).unwrap();
    gpu.free(larger).unwrap();
    gpu.end();
}

#[test]
fn c8_a_buffer_is_known_by_its_address_while_it_is_pinned() {
    let gpu = Gpu::with(spilling);
    let stream = gpu.stream();
    let stream = raw(&stream);
    let buffer = gpu.create_spillable(MIB, stream).unwrap();
    let address = gpu.pin(buffer, stream).unwrap();
    assert_eq!(gpu.wait(address, stream, DMR_ACCESS_WRITE), Ok(()));
    assert_eq!(gpu.free(address), Err(Status::UnknownAddress));
    assert_eq!(gpu.destroy_spillable(buffer), Err(Status::Busy));
    assert!(last_error().contains("dmr_spillable_unpin"), "{}", last_error());
    assert_eq!(gpu.live(), []);
    assert_eq!(gpu.unpin(buffer), Ok(()));
    assert_eq!(gpu.record(address, stream, DMR_ACCESS_READ), Err(Status::UnknownAddress));
    assert_eq!(gpu.unpin(buffer), Err(Status::InvalidArgument));
    for foreign in [ptr::null_mut(), ptr::without_provenance_mut(7)] {
        assert_eq!(gpu.unpin(foreign), Err(Status::UnknownAddress));
        assert_eq!(gpu.pin(foreign, stream), Err(Status::UnknownAddress));
        assert_eq!(gpu.destroy_spillable(foreign), Err(Status::UnknownAddress));
    }
    assert_eq!(gpu.create_spillable(0, stream), Err(Status::InvalidArgument));
    assert_eq!(gpu.create_spillable(usize::MAX, stream), Err(Status::OutOfMemory));
    gpu.end();
}

#[test]
fn c8_a_runtime_that_does_not_spill_says_so() {
    let settings: [fn(&mut Config); 2] =
        [|_| {}, |config| (config.spill, config.backend) = (1, DMR_BACKEND_DIRECT)];
    for change in settings {
        let gpu = Gpu::with(change);
        let stream = gpu.stream();
        assert_eq!(gpu.create_spillable(MIB, raw(&stream)), Err(Status::Unsupported));
        assert_eq!(gpu.usage().live, 0);
        gpu.end();
    }
}

#[test]
fn c8_a_free_that_a_capture_refuses_is_made_by_a_reap() {
    let gpu = Gpu::with(spilling);
    let stream = gpu.stream();
    let buffer = gpu.create_spillable(MIB, raw(&stream)).unwrap();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    stream.begin_capture(mode).unwrap();
    assert_eq!(gpu.destroy_spillable(buffer), Ok(()));
    assert_eq!(gpu.usage().live, MIB as u64);
    assert_eq!(reap(&gpu), Err(Status::StreamCapturing));
    assert_eq!(gpu.destroy(), Err(Status::StreamCapturing));
    // Another runtime leaves the memory alone.
    let other = Gpu::with(spilling);
    assert_eq!(reap(&other), Ok(()));
    other.end();
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    stream.end_capture(flags).unwrap();
    assert_eq!(reap(&gpu), Ok(()));
    assert_eq!(gpu.usage().live, 0);
    gpu.end();
}

/// Makes a call, and once more after a reap if it fails.
fn after_a_reap<T>(gpu: &Calls, call: &dyn Fn() -> Result<T, Status>) -> T {
    call().unwrap_or_else(|status| {
        assert_ne!(status, Status::Panic, "{}", last_error());
        reap(gpu).unwrap();
        call().unwrap_or_else(|status| panic!("{status:?}: {}", last_error()))
    })
}

#[test]
fn c8_each_driver_call_may_fail() {
    const SMALL: usize = 2 * MIB;
    let prepare = |rig: &Rig| {
        let stream = stream_of(rig.device().context());
        let gpu = Calls::on(rig, |config| {
            spilling(config);
            config.budget_bytes = 6 * MIB as u64;
        });
        (gpu, stream)
    };
    let failed = for_each_driver_call(801, prepare, |_, (gpu, stream)| {
        let stream = raw(&stream);
        let twice = |call: &dyn Fn() -> Result<(), Status>| {
            if let Err(status) = call() {
                assert_ne!(status, Status::Panic, "{}", last_error());
                assert_eq!(call(), Ok(()), "{}", last_error());
            }
        };
        let create = || gpu.create_spillable(SMALL, stream);
        // Memory whose spill has failed half way is found by a reap, as the error says.
        let first = after_a_reap(&gpu, &create);
        let write = |buffer| {
            let address = after_a_reap(&gpu, &|| gpu.pin(buffer, stream));
            twice(&|| gpu.try_fill(1, address, SMALL, stream));
            twice(&|| gpu.record(address, stream, DMR_ACCESS_WRITE));
            twice(&|| gpu.unpin(buffer));
        };
        write(first);
        // The second one spills the first, and each that is pinned the other.
        let second = after_a_reap(&gpu, &create);
        write(second);
        write(first);
        twice(&|| gpu.destroy_spillable(first));
        twice(&|| gpu.destroy());
        assert_eq!(gpu.destroy(), Err(Status::UnknownRuntime));
    });
    assert!(failed > 20, "{failed}");
}
