//! R10: slices of cudarc become buffers with their pending work, and buffers become slices.

#![allow(unsafe_code, reason = "submits to the address of a launch")]

use std::sync::Arc;

use crate::context::Context;
use cudarc::driver::{CudaSlice, DevicePtrMut, result};
use dmr_buffer::DeviceBuffer;
use dmr_core::ResourceError;
use dmr_launch::{LaunchRecorder, Reads, ReadsAndWrites};
use dmr_slices::CudaSlices;
use dmr_streams::DeviceContext;
use dmr_testkit::Rig;

const LEN: usize = 1 << 14;

#[test]
fn a_slice_is_adopted_with_its_pending_work() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let context = rig.device().context();
    let home = rig.stream();
    let away = rig.stream();
    let own = context.new_stream().unwrap();
    let mut source = own.clone_htod(&[1u8; LEN]).unwrap();
    let mut copy = away.stream().alloc_zeros::<u8>(LEN).unwrap();
    // Its own stream, a reader and a writer are behind.
    rig.delay(&away);
    away.stream().memcpy_dtod(&source, &mut copy).unwrap();
    away.stream().memset_zeros(&mut source).unwrap();
    let mut x = DeviceBuffer::adopt(&ctx, &home, source).unwrap();
    assert_eq!((x.len(), x.to_host(&home).unwrap()), (LEN, vec![0; LEN]));
    x.fill(2, &home).unwrap();
    assert_eq!(x.to_host(&away).unwrap(), [2; LEN]);
    assert_eq!(away.stream().clone_dtoh(&copy).unwrap(), [1; LEN]);
    away.stream().synchronize().unwrap();
    drop((x, copy, own, home, away));
    ctx.assert_clean(rig);
}

#[test]
fn work_on_the_slices_stream_that_cudarc_has_not_recorded_is_waited_for() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let own = rig.stream();
    let mut slice = own.stream().clone_htod(&[1u8; LEN]).unwrap();
    let (ptr, recorded) = slice.device_ptr_mut(own.stream());
    drop(recorded);
    rig.delay(&own);
    // SAFETY: the bytes of the slice.
    unsafe { result::memset_d8_async(ptr, 4, LEN, own.stream().cu_stream()) }.unwrap();
    let x = DeviceBuffer::adopt(&ctx, &home, slice).unwrap();
    assert_eq!(x.to_host(&home).unwrap(), [4; LEN]);
    drop((x, own, home));
    ctx.assert_clean(rig);
}

#[test]
fn an_adopted_buffer_is_used_in_launches_with_memory_of_the_runtime() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let away = rig.stream();
    let slice = home.stream().clone_htod(&[1.5f32; LEN]).unwrap();
    let x = DeviceBuffer::adopt(&ctx, &home, slice).unwrap();
    let mut y = DeviceBuffer::<f32>::zeroed(&ctx, &home, LEN).unwrap();
    rig.delay(&away);
    let launch = LaunchRecorder::new_strict(&away);
    launch
        .launch_with(&ctx, (Reads(&x), ReadsAndWrites(&mut y)), |stream, (x, mut y)| {
            stream.memcpy_dtod(&x, &mut y)
        })
        .unwrap();
    drop(x);
    assert_eq!(y.to_host(&home).unwrap(), [1.5; LEN]);
    drop((y, home, away));
    ctx.assert_clean(rig);
}

#[test]
fn the_memory_of_a_dropped_buffer_is_freed_after_its_uses() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let context = rig.device().context();
    let home = rig.stream();
    let away = rig.stream();
    let own = context.new_stream().unwrap();
    for stream in [&home, &away] {
        let x = DeviceBuffer::adopt(&ctx, &home, own.clone_htod(&[3u8; LEN]).unwrap()).unwrap();
        let mut y = DeviceBuffer::<u8>::uninit(&ctx, stream, LEN).unwrap();
        rig.delay(stream);
        y.copy_from(&x, stream).unwrap();
        drop(x);
        // May have the same memory.
        let next: CudaSlice<u8> = own.alloc_zeros(LEN).unwrap();
        assert_eq!(y.to_host(stream).unwrap(), [3; LEN], "{stream:?}");
        drop(next);
    }
    drop((own, home, away));
    ctx.assert_clean(rig);
}

#[test]
fn a_buffer_is_given_back_after_its_uses() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let context = rig.device().context();
    let home = rig.stream();
    let away = rig.stream();
    let other = context.new_stream().unwrap();
    let adopted = DeviceBuffer::adopt(&ctx, &home, other.clone_htod(&[0u32; LEN]).unwrap());
    let made = DeviceBuffer::<u32>::zeroed(&CudaSlices::of(&ctx), &home, LEN);
    for (mut x, stream) in [(adopted.unwrap(), &other), (made.unwrap(), home.stream())] {
        rig.delay(&away);
        x.fill(7, &away).unwrap();
        let slice = x.into_cuda_slice().unwrap();
        assert_eq!((slice.len(), slice.stream()), (LEN, stream));
        let third = context.new_stream().unwrap();
        assert_eq!(third.clone_dtoh(&slice).unwrap(), [7; LEN]);
        third.synchronize().unwrap();
    }
    drop((home, away, other));
    ctx.assert_clean(rig);
}

#[test]
fn buffers_of_no_elements_have_no_block_in_between() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let x = DeviceBuffer::adopt(&ctx, &home, home.stream().null::<u64>().unwrap()).unwrap();
    assert!(x.is_empty() && x.block().is_none());
    assert!(x.into_cuda_slice().unwrap().is_empty());
    drop(home);
    ctx.assert_clean(rig);
}

/// Elements beyond the length were never written, or are not the buffer's any more.
#[test]
fn a_slice_has_the_length_of_its_buffer_whatever_room_that_had() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let slices = CudaSlices::of(&ctx);
    let [elements, few] = [[7u32; 64].as_slice(), [7u32; 10].as_slice()];
    let given_away = DeviceBuffer::from_host(&ctx, &home, elements).unwrap();
    let slice = home.stream().clone_htod(elements).unwrap();
    let adopted = DeviceBuffer::adopt(&ctx, &home, slice).unwrap();
    let made = DeviceBuffer::from_host(&slices, &home, elements).unwrap();
    let mut grown = DeviceBuffer::from_host(&slices, &home, few).unwrap();
    grown.reserve(200, &home).unwrap();
    let buffers =
        [("given away", given_away), ("adopted", adopted), ("made", made), ("grown", grown)];
    for (name, mut buffer) in buffers {
        buffer.truncate(10);
        assert!(buffer.capacity() > 10, "{name}");
        let slice = buffer.into_cuda_slice().unwrap();
        assert_eq!(home.stream().clone_dtoh(&slice).unwrap(), few, "{name}");
    }
    let mut none = DeviceBuffer::from_host(&slices, &home, few).unwrap();
    none.truncate(0);
    assert!(none.into_cuda_slice().unwrap().is_empty());
    drop((slices, home));
    ctx.assert_clean(rig);
}

#[test]
fn a_buffer_is_neither_given_back_nor_freed_while_a_launch_of_it_is_prepared() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let away = rig.stream();
    let slice = home.stream().clone_htod(&[1u8; LEN]).unwrap();
    let mut x = DeviceBuffer::adopt(&ctx, &home, slice).unwrap();
    let mut launch = LaunchRecorder::new_strict(&away);
    let to = launch.write(&mut x);
    let prepared = launch.prepare(&ctx).unwrap();
    let refused = x.into_cuda_slice().unwrap_err();
    assert!(matches!(refused.error, ResourceError::WindowConflict { .. }), "{refused}");
    let slices = CudaSlices::of(&ctx);
    let id = refused.buffer.block().unwrap().id();
    assert!(!slices.resource().is_retired(id));
    drop(refused);
    assert_eq!(slices.resource().usage().retired, LEN as u64);
    assert!(slices.resource().is_retired(id));
    rig.delay(&away);
    // SAFETY: the launch has declared the write of the bytes.
    unsafe { result::memset_d8_async(to.device_ptr(), 5, LEN, away.stream().cu_stream()) }.unwrap();
    prepared.finish().unwrap();
    assert_eq!(slices.resource().try_reap(), Ok(LEN as u64));
    assert_eq!(slices.resource().bytes_outstanding(), 0);
    drop((slices, home, away));
    ctx.assert_clean(rig);
}

#[test]
fn what_is_retired_when_its_window_closes_last_is_freed_with_the_stream_pool() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let x =
        DeviceBuffer::adopt(&ctx, &home, home.stream().clone_htod(&[1u8; LEN]).unwrap()).unwrap();
    let mut launch = LaunchRecorder::new_strict(&home);
    launch.read(&x);
    let prepared = launch.prepare(&ctx).unwrap();
    drop(x);
    prepared.finish().unwrap();
    drop(home);
    ctx.assert_clean(rig);
}

#[test]
fn a_slice_of_another_pools_context_is_returned() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let returned = rig.stream().id();
    let home = rig.stream();
    let context = Arc::clone(rig.device().context());
    let slice = context.default_stream().clone_htod(&[9u8; LEN]).unwrap();
    let refused = DeviceBuffer::adopt(&ctx, returned, slice).unwrap_err();
    assert!(matches!(refused.error, ResourceError::StreamMisuse { .. }), "{refused}");
    assert_eq!(home.stream().clone_dtoh(&refused.slice).unwrap(), [9; LEN]);
    home.stream().synchronize().unwrap();
    drop((refused, context, home));
    ctx.assert_clean(rig);
}
