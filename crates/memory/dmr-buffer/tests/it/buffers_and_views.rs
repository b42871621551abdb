//! Copies, fills, views, lengths: what a buffer does, and what it refuses.

use crate::context::Context;
use dmr_buffer::{BufferError, Column, DeviceBuffer, ExternalColumn};
use dmr_core::error::StreamProblem;
use dmr_core::{AllocTag, ByteRange, ResourceError, StreamId};
use dmr_streams::{DeviceContext, MemoryOrigin, TrackedMemory};
use dmr_testkit::Rig;

#[test]
fn views_read_and_write_their_part_and_no_other() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let home = StreamId::DEFAULT;
    let source = DeviceBuffer::from_host(&ctx, home, &[1u16, 2, 3, 4]).unwrap();
    let mut target = DeviceBuffer::<u16>::zeroed(&ctx, home, 6).unwrap();
    target.slice_mut(1..3).unwrap().copy_from(source.slice(2..).unwrap(), home).unwrap();
    target.slice_mut(4..=4).unwrap().copy_from_host(&[9], home).unwrap();
    target.slice_mut(5..).unwrap().fill_bytes(0xff, home).unwrap();
    assert_eq!(target.to_host(home).unwrap(), [0, 3, 4, 0, 9, 0xffff]);
    assert_eq!(target.slice(1..3).unwrap().to_host(home).unwrap(), [3, 4]);
    let mut view = target.view_mut();
    view.slice_mut(..2).unwrap().slice_mut(1..).unwrap().fill_zero(home).unwrap();
    assert_eq!(view.as_view().slice(..2).unwrap().to_host(home).unwrap(), [0, 0]);
    target.slice_mut(..4).unwrap().copy_from(&source, home).unwrap();
    assert_eq!(target.to_host(home).unwrap(), [1, 2, 3, 4, 9, 0xffff]);
    drop((source, target));
    ctx.assert_clean(rig);
}

#[test]
fn a_view_is_memory_of_the_same_block_further_on() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let mut buffer = DeviceBuffer::<u64>::zeroed(&ctx, ctx.home(), 10).unwrap();
    let start = buffer.device_ptr();
    let origin = MemoryOrigin::Block(buffer.block().unwrap().id());
    assert_eq!(buffer.origin(), origin);
    let view = buffer.slice(3..5).unwrap();
    assert_eq!((view.device_ptr(), view.origin()), (start + 24, origin));
    let view = buffer.slice_mut(9..).unwrap();
    assert_eq!((view.device_ptr(), view.origin()), (start + 72, origin));
    let view = buffer.slice(10..).unwrap();
    assert_eq!((view.device_ptr(), view.origin(), view.len()), (0, MemoryOrigin::Empty, 0));
    drop(buffer);
    ctx.assert_clean(rig);
}

#[test]
fn a_buffer_is_divided_as_a_slice_is() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let home = StreamId::DEFAULT;
    let host: Vec<u16> = (0..11).collect();
    let mut buffer = DeviceBuffer::from_host(&ctx, home, &host).unwrap();
    for mid in 0..=11 {
        let (left, right) = buffer.split_at(mid).unwrap();
        let halves = [left, right].map(|half| half.to_host(home).unwrap());
        assert_eq!(halves.each_ref().map(Vec::as_slice), <[_; 2]>::from(host.split_at(mid)));
    }
    for chunk_len in 1..=12 {
        let chunks = buffer.chunks(chunk_len).unwrap();
        assert_eq!(chunks.len(), host.chunks(chunk_len).len());
        let chunks: Vec<_> = chunks.map(|chunk| chunk.to_host(home).unwrap()).collect();
        assert_eq!(chunks, host.chunks(chunk_len).map(Vec::from).collect::<Vec<_>>());
    }
    let mut chunks = buffer.chunks(4).unwrap();
    assert_eq!(chunks.next().unwrap().split_at(1).unwrap().1.to_host(home).unwrap(), [1, 2, 3]);
    assert_eq!(chunks.size_hint(), (2, Some(2)));
    let (mut left, mut right) = buffer.split_at_mut(5).unwrap();
    left.fill(100, home).unwrap();
    let (mut middle, _) = right.split_at_mut(2).unwrap();
    middle.fill(200, home).unwrap();
    for (nth, mut chunk) in right.chunks_mut(3).unwrap().enumerate().skip(1) {
        chunk.fill(300 + nth as u16, home).unwrap();
    }
    assert_eq!(
        buffer.to_host(home).unwrap(),
        [100, 100, 100, 100, 100, 200, 200, 7, 301, 301, 301]
    );
    for nothing in [buffer.chunks(0).err(), buffer.chunks_mut(0).err()] {
        assert_eq!(nothing, Some(BufferError::EmptyChunks));
    }
    for outside in [buffer.split_at(12).err(), buffer.split_at_mut(12).err()] {
        assert!(matches!(outside, Some(BufferError::OutOfRange { .. })), "{outside:?}");
    }
    drop(buffer);
    ctx.assert_clean(rig);
}

/// A use is of the view's bytes; what covers its block is the whole block, also after the block has
/// grown.
#[test]
fn the_bytes_of_a_view_are_its_own() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let mut buffer = DeviceBuffer::<u64>::zeroed(&ctx, ctx.home(), 10).unwrap();
    let start = buffer.device_ptr();
    let all =
        [buffer.byte_range(), buffer.view().byte_range(), buffer.slice(..10).unwrap().byte_range()];
    assert_eq!(all, [ByteRange::WHOLE; 3]);
    assert_eq!(buffer.chunks(10).unwrap().next().unwrap().byte_range(), ByteRange::WHOLE);
    let part = buffer.slice(3..5).unwrap();
    let bytes = ByteRange::new(start + 24, 16);
    assert_eq!((part.byte_range(), part.size_in_bytes()), (bytes, 16));
    assert_eq!(part.slice(..).unwrap().byte_range(), bytes);
    assert_eq!(buffer.slice_mut(3..5).unwrap().byte_range(), bytes);
    let (left, right) = buffer.split_at_mut(4).unwrap();
    assert_eq!(left.byte_range().end(), right.byte_range().start());
    assert_eq!(left.byte_range(), ByteRange::new(start, 32));
    drop(buffer);
    ctx.assert_clean(rig);
}

#[test]
fn ranges_and_lengths_that_do_not_fit_are_refused() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let home = StreamId::DEFAULT;
    let mut buffer = DeviceBuffer::<u8>::zeroed(&ctx, home, 4).unwrap();
    let is_outside = |error: BufferError| match error {
        BufferError::OutOfRange { .. } => error.to_string(),
        _ => panic!("{error:?}"),
    };
    assert_eq!(
        is_outside(buffer.slice(2..5).unwrap_err()),
        "elements 2..5 are not inside a buffer of 4: use a range inside of it"
    );
    #[expect(clippy::reversed_empty_ranges, reason = "it is what is refused")]
    for error in [buffer.slice(3..2).unwrap_err(), buffer.slice(..=usize::MAX).unwrap_err()] {
        is_outside(error);
    }
    is_outside(buffer.slice_mut(5..).unwrap_err());
    for error in [
        buffer.copy_from_host(&[1; 3], home).unwrap_err(),
        buffer.copy_to_host(&mut [1; 5], home).unwrap_err(),
    ] {
        assert!(matches!(error, BufferError::LengthMismatch { .. }), "{error:?}");
    }
    assert_eq!(buffer.to_host(home).unwrap(), [0; 4]);
    drop(buffer);
    ctx.assert_clean(rig);
}

#[test]
fn a_buffer_of_no_bytes_has_no_block_and_can_do_everything() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let home = StreamId::DEFAULT;
    let mut empty = DeviceBuffer::<f32>::from_host(&ctx, home, &[]).unwrap();
    assert_eq!((empty.len(), empty.device_ptr()), (0, 0));
    assert_eq!(empty.origin(), MemoryOrigin::Empty);
    empty.fill_zero(home).unwrap();
    let other = DeviceBuffer::<f32>::zeroed(&ctx, home, 0).unwrap();
    empty.copy_from(&other, home).unwrap();
    assert_eq!(empty.to_host(home).unwrap(), [0.0; 0]);
    let units = DeviceBuffer::from_host(&ctx, home, &[(), ()]).unwrap();
    assert_eq!((units.len(), units.to_host(home).unwrap().len()), (2, 2));
    assert_eq!(ctx.resource().usage().total_allocated, 0);
    drop((empty, other, units));
    ctx.assert_clean(rig);
}

#[test]
fn a_foreign_stream_is_refused_even_for_no_bytes() {
    let rig = Rig::new();
    let other = Rig::new();
    let ctx = Context::direct(&rig);
    let foreign = other.streams().default_stream();
    let mut empty = DeviceBuffer::<u8>::uninit(&ctx, ctx.home(), 0).unwrap();
    for refused in [
        DeviceBuffer::<u8>::uninit(&ctx, foreign, 0).map(drop),
        DeviceBuffer::<u8>::uninit(&ctx, foreign, 1).map(drop),
        empty.fill_zero(foreign),
        empty.to_host(foreign).map(drop),
    ] {
        let Err(BufferError::Resource(ResourceError::StreamMisuse { problem, .. })) = refused
        else {
            panic!("{refused:?}");
        };
        // On the simulator each rig has a machine of its own.
        let expected = StreamProblem::other_pool(Some(other.ordinal()), rig.ordinal());
        assert_eq!(problem, expected);
    }
    drop(empty);
    ctx.assert_clean(rig);
}

#[test]
fn without_tracking_only_the_home_stream_will_do() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let home = rig.stream();
    let away = rig.stream();
    let mut buffer = DeviceBuffer::from_host(&ctx, &home, &[1u8, 2]).unwrap();
    let elsewhere = DeviceBuffer::from_host(&ctx, &away, &[3u8, 4]).unwrap();
    for refused in [
        buffer.to_host(&away).map(drop),
        buffer.fill_zero(&away),
        buffer.copy_from(&elsewhere, &home),
        buffer.copy_from(&elsewhere, &away),
        buffer.copy_from_host(&[5, 6], &away),
    ] {
        let Err(BufferError::Resource(ResourceError::StreamMisuse { problem, .. })) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(problem, StreamProblem::NotTracked);
    }
    assert_eq!(buffer.to_host(&home).unwrap(), [1, 2]);
    drop((buffer, elsewhere, home, away));
    ctx.assert_clean(rig);
}

#[test]
fn a_copy_between_stream_pools_is_refused() {
    let rig = Rig::new();
    let other_rig = Rig::new();
    for context in [Context::direct, Context::tracked] {
        let ctx = context(&rig);
        let other = context(&other_rig);
        let mut mine = DeviceBuffer::<u8>::zeroed(&ctx, ctx.home(), 4).unwrap();
        let theirs = DeviceBuffer::<u8>::zeroed(&other, other.home(), 4).unwrap();
        let refused = mine.copy_from(&theirs, ctx.home()).unwrap_err();
        let BufferError::Resource(ResourceError::OtherPool { generation, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(generation, theirs.block().unwrap().generation());
    }
    rig.assert_clean();
    other_rig.assert_clean();
}

#[test]
fn a_tag_says_what_the_memory_is_for() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let tag = AllocTag::new("hash-table");
    for (buffer, content) in [
        (DeviceBuffer::<u8>::uninit_tagged(&ctx, ctx.home(), 5, tag).unwrap(), None),
        (DeviceBuffer::zeroed_tagged(&ctx, ctx.home(), 5, tag).unwrap(), Some([0; 5])),
        (DeviceBuffer::from_host_tagged(&ctx, ctx.home(), &[3; 5], tag).unwrap(), Some([3; 5])),
    ] {
        assert_eq!(buffer.block().unwrap().tag(), tag);
        if let Some(content) = content {
            assert_eq!(buffer.to_host(ctx.home()).unwrap(), content);
        }
    }
    ctx.assert_clean(rig);
}

#[test]
fn a_column_is_a_buffer_or_names_what_it_is() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let buffer = DeviceBuffer::from_host(&ctx, ctx.home(), &[1u8, 2]).unwrap();
    let ptr = buffer.device_ptr();
    let id = buffer.block().unwrap().id();
    let owned = Column::from(buffer);
    assert_eq!((owned.device_ptr(), owned.origin()), (ptr, MemoryOrigin::Block(id)));
    let external = Column::<f32>::from(ExternalColumn::new("arrow:price", 0x1000, 7));
    assert_eq!((external.device_ptr(), external.len()), (0x1000, 7));
    assert_eq!(external.origin(), MemoryOrigin::External { name: "arrow:price" });
    let nothing = ExternalColumn::<f32>::new("arrow:none", 0x1000, 0);
    assert_eq!(nothing.origin(), MemoryOrigin::Empty);
    drop(owned);
    ctx.assert_clean(rig);
}
