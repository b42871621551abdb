//! D7: parts of pinned buffers in copies, uninitialised and write-combined buffers.

use crate::context::Context;
use dmr_buffer::pinned::{reap_pinned, trim_pinned};
use dmr_buffer::{BufferError, DeviceBuffer, PinnedBuffer, WriteCombinedBuffer};
use dmr_core::{AllocTag, ByteRange};
use dmr_pinned::PinnedPool;
use dmr_streams::{DeviceContext, MemoryOrigin, TrackedMemory};
use dmr_testkit::Rig;

const LEN: usize = 1 << 16;

#[test]
fn parts_are_copied_in_both_directions_on_two_streams() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let streams = [rig.stream(), rig.stream()];
    let numbers: Vec<u32> = (0..LEN as u32).collect();
    let up = PinnedBuffer::from_slice(&ctx, &streams[0], &numbers).unwrap();
    let mut down = PinnedBuffer::<u32>::zeroed(&ctx, &streams[0], LEN).unwrap();
    let mut device = DeviceBuffer::<u32>::uninit(&ctx, &streams[0], LEN).unwrap();
    for (index, part) in up.view().chunks(LEN / 4).unwrap().enumerate() {
        let range = index * LEN / 4..(index + 1) * LEN / 4;
        part.copy_to_device(device.slice_mut(range).unwrap(), &streams[index % 2]).unwrap();
    }
    let mut all = down.view_mut();
    for (index, mut part) in all.chunks_mut(LEN / 8).unwrap().enumerate() {
        let range = index * LEN / 8..(index + 1) * LEN / 8;
        part.copy_from_device(device.slice(range).unwrap(), &streams[index % 2]).unwrap();
    }
    assert_eq!(down.as_slice().unwrap(), numbers);
    drop((up, down, device, streams));
    ctx.assert_clean(rig);
}

#[test]
fn the_host_fills_one_part_while_the_device_reads_the_other() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let stream = rig.stream();
    let mut pinned = PinnedBuffer::from_slice(&ctx, &stream, &[1u8; LEN]).unwrap();
    let mut device = DeviceBuffer::<u8>::zeroed(&ctx, &stream, LEN).unwrap();
    let mut all = pinned.view_mut();
    let (mut left, mut right) = all.split_at_mut(LEN / 2).unwrap();
    rig.delay(&stream);
    left.copy_to_device(device.slice_mut(..LEN / 2).unwrap(), &stream).unwrap();
    right.as_mut_slice().unwrap().fill(2);
    right.copy_to_device(device.slice_mut(LEN / 2..).unwrap(), &stream).unwrap();
    left.as_mut_slice().unwrap().fill(3);
    let host = device.to_host(&stream).unwrap();
    assert!(host[..LEN / 2].iter().all(|byte| *byte == 1), "the copy came before the host's write");
    assert!(host[LEN / 2..].iter().all(|byte| *byte == 2));
    drop((pinned, device, stream));
    ctx.assert_clean(rig);
}

#[test]
fn a_view_names_its_bytes_and_an_empty_one_nothing() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let mut pinned = PinnedBuffer::<u32>::zeroed(&ctx, ctx.home(), 100).unwrap();
    let at = pinned.device_ptr();
    let part = pinned.slice(10..30).unwrap();
    assert_eq!((part.device_ptr(), part.size_in_bytes()), (at + 40, 80));
    assert_eq!((part.byte_range(), part.origin()), (ByteRange::new(at + 40, 80), pinned.origin()));
    assert_eq!(pinned.view().byte_range(), ByteRange::WHOLE);
    assert_eq!(pinned.slice(..).unwrap().byte_range(), ByteRange::WHOLE);
    let empty = pinned.slice(5..5).unwrap();
    assert_eq!((empty.device_ptr(), empty.origin()), (0, MemoryOrigin::Empty));
    let lens: Vec<usize> = pinned.view().chunks(30).unwrap().map(|part| part.len()).collect();
    assert_eq!(lens, [30, 30, 30, 10]);
    let refused = [
        pinned.slice(90..101).unwrap_err(),
        pinned.slice_mut(101..).unwrap_err(),
        pinned.view_mut().split_at_mut(101).map(drop).unwrap_err(),
    ];
    assert!(refused.iter().all(|refused| matches!(refused, BufferError::OutOfRange { .. })));
    assert_eq!(pinned.view().chunks(0).map(drop).unwrap_err(), BufferError::EmptyChunks);
    // Elements of no bytes: as many as there are numbers.
    let units = PinnedBuffer::<()>::uninit(&ctx, ctx.home(), usize::MAX).unwrap();
    let lens = units.view().chunks(usize::MAX - 1).unwrap().map(|part| part.len());
    assert_eq!(lens.collect::<Vec<_>>(), [usize::MAX - 1, 1]);
    drop((pinned, units));
    ctx.assert_clean(rig);
}

#[test]
fn memory_that_is_used_again_is_zero_where_zeros_are_requested() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let make = || PinnedBuffer::<u64>::uninit(&ctx, ctx.home(), 1000).unwrap();
    let mut first = make();
    first.as_mut_slice().unwrap().fill(7);
    let at = first.device_ptr();
    drop(first);
    reap_pinned(&ctx).unwrap();
    let mut second = PinnedBuffer::<u64>::zeroed(&ctx, ctx.home(), 1000).unwrap();
    assert_eq!(second.device_ptr(), at, "the memory of the first");
    assert_eq!(second.as_slice().unwrap(), [0; 1000]);
    drop(second);
    // Of any content, but written: reading it is defined.
    assert_eq!(make().as_slice().unwrap().len(), 1000);
    ctx.assert_clean(rig);
}

#[test]
fn a_write_combined_buffer_is_written_in_parts_and_copied() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let stream = rig.stream();
    let mut upload = WriteCombinedBuffer::from_slice(&ctx, &stream, &[1u32; 1000]).unwrap();
    let mut device = DeviceBuffer::<u32>::zeroed(&ctx, &stream, 1000).unwrap();
    rig.delay(&stream);
    upload.copy_to_device(&mut device, &stream).unwrap();
    // Waits for the copy.
    upload.write(500, &[2; 500]).unwrap();
    assert_eq!(device.to_host(&stream).unwrap(), [1; 1000]);
    upload.slice(500..).unwrap().copy_to_device(device.slice_mut(..500).unwrap(), &stream).unwrap();
    let host = device.to_host(&stream).unwrap();
    assert_eq!((&host[..500], &host[500..]), (&[2; 500][..], &[1; 500][..]));
    let refused = upload.write(501, &[2; 500]).unwrap_err();
    assert!(matches!(refused, BufferError::OutOfRange { .. }), "{refused}");
    assert!(upload.write(usize::MAX, &[1]).is_err());
    drop((upload, device, stream));
    ctx.assert_clean(rig);
}

#[test]
fn a_trim_returns_the_memory_of_buffers_that_were_dropped() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let tag = AllocTag::new("staging");
    let pinned = PinnedBuffer::<u8>::zeroed_tagged(&ctx, ctx.home(), 5 << 20, tag).unwrap();
    let small = PinnedBuffer::<u8>::zeroed(&ctx, ctx.home(), 10).unwrap();
    drop(pinned);
    reap_pinned(&ctx).unwrap();
    assert_eq!(trim_pinned(&ctx, 0).unwrap(), 5 << 20);
    let usage = PinnedPool::of(ctx.streams()).usage();
    assert_eq!((usage.live, usage.reserved), (10, 2 << 20));
    drop(small);
    ctx.assert_clean(rig);
}
