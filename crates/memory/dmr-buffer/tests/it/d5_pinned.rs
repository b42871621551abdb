//! D5: asynchronous copies take pinned buffers, which are tracked like blocks.

use crate::context::Context;
use dmr_buffer::pinned::{reap_pinned, try_reap_pinned};
use dmr_buffer::{BufferError, DeviceBuffer, PinnedBuffer};
use dmr_core::{Access, BlockUse, ResourceError};
use dmr_pinned::PinnedMemory;
use dmr_streams::{DeviceContext, MemoryOrigin, TrackedMemory};
use dmr_testkit::Rig;

#[test]
fn pinned_copies_go_there_and_back_also_where_blocks_are_not_tracked() {
    for context in [Context::direct, Context::tracked] {
        let rig = Rig::new();
        let ctx = context(&rig);
        let host: Vec<u32> = (0..1000).collect();
        let up = PinnedBuffer::from_slice(&ctx, ctx.home(), &host).unwrap();
        let mut down = PinnedBuffer::<u32>::zeroed(&ctx, ctx.home(), 1000).unwrap();
        assert_eq!(down.as_slice().unwrap(), [0; 1000]);
        let mut buffer = DeviceBuffer::<u32>::uninit(&ctx, ctx.home(), 1000).unwrap();
        rig.delay(ctx.home());
        up.copy_to_device(&mut buffer, ctx.home()).unwrap();
        down.copy_from_device(&buffer, ctx.home()).unwrap();
        assert_eq!(down.as_slice().unwrap(), host);
        drop((up, down, buffer));
        ctx.assert_clean(rig);
    }
}

#[test]
fn the_host_gets_the_memory_only_when_the_device_has_read_it() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let away = rig.stream();
    for stream in [&home, &away] {
        let mut pinned = PinnedBuffer::from_slice(&ctx, &home, &[1u8; 4096]).unwrap();
        let mut buffer = DeviceBuffer::<u8>::uninit(&ctx, stream, 4096).unwrap();
        rig.delay(stream);
        pinned.copy_to_device(&mut buffer, stream).unwrap();
        pinned.as_mut_slice().unwrap().fill(2);
        assert_eq!(buffer.to_host(stream).unwrap(), [1; 4096], "{stream:?}");
    }
    drop((home, away));
    ctx.assert_clean(rig);
}

#[test]
fn copies_on_different_streams_are_ordered_by_the_pinned_buffer_alone() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let a = rig.stream();
    let b = rig.stream();
    let source = DeviceBuffer::from_host(&ctx, &a, &[7u8; 1 << 16]).unwrap();
    let mut target = DeviceBuffer::<u8>::zeroed(&ctx, &b, 1 << 16).unwrap();
    let mut between = PinnedBuffer::<u8>::zeroed(&ctx, &a, 1 << 16).unwrap();
    rig.delay(&a);
    between.copy_from_device(&source, &a).unwrap();
    between.copy_to_device(&mut target, &b).unwrap();
    assert_eq!(target.to_host(&b).unwrap(), [7; 1 << 16]);
    drop((source, target, between, a, b));
    ctx.assert_clean(rig);
}

#[test]
fn dropped_while_the_device_reads_it_is_freed_afterwards() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let away = rig.stream();
    let mut buffer = DeviceBuffer::<u8>::uninit(&ctx, &away, 4096).unwrap();
    for stream in [&home, &away] {
        let pinned = PinnedBuffer::from_slice(&ctx, &home, &[5u8; 4096]).unwrap();
        rig.delay(stream);
        pinned.copy_to_device(&mut buffer, stream).unwrap();
        drop(pinned);
        // Making another one frees nothing that is in use.
        let mut other = PinnedBuffer::from_slice(&ctx, &home, &[6u8; 4096]).unwrap();
        other.as_mut_slice().unwrap().fill(9);
        assert_eq!(buffer.to_host(stream).unwrap(), [5; 4096]);
        drop(other);
        reap_pinned(&ctx).unwrap();
        assert_eq!(try_reap_pinned(&ctx).unwrap(), 0, "nothing is left");
    }
    drop((buffer, home, away));
    ctx.assert_clean(rig);
}

#[test]
fn a_reap_says_how_many_bytes_it_freed_and_a_poll_frees_what_is_done() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    drop(PinnedBuffer::<u8>::zeroed(&ctx, ctx.home(), 1000).unwrap());
    // The first poll records an event, which may take a while.
    let freed = try_reap_pinned(&ctx).unwrap();
    rig.device().synchronize().unwrap();
    assert_eq!(freed + try_reap_pinned(&ctx).unwrap(), 1000);
    drop(PinnedBuffer::<u64>::zeroed(&ctx, ctx.home(), 10).unwrap());
    assert_eq!(reap_pinned(&ctx).unwrap(), 80);
    ctx.assert_clean(rig);
}

#[test]
fn an_open_window_keeps_the_host_out_and_the_memory_there() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let mut pinned = PinnedBuffer::from_slice(&ctx, ctx.home(), &[1u8]).unwrap();
    let MemoryOrigin::Pinned(id) = pinned.origin() else { panic!("no block") };
    let uses = ctx.streams().uses();
    let window = |access| uses.prepare(&[BlockUse::new(id, access)], ctx.home());
    let tokens = window(Access::Read).unwrap();
    assert_eq!(pinned.as_slice().unwrap_err(), BufferError::InUse);
    uses.cancel(tokens).unwrap();
    assert_eq!(pinned.as_slice().unwrap(), [1]);

    let tokens = window(Access::Read).unwrap();
    drop(pinned);
    assert_eq!(reap_pinned(&ctx).unwrap(), 0);
    uses.finish(tokens).unwrap();
    let Err(ResourceError::UseAfterFree { generation, .. }) = window(Access::Read) else {
        panic!("a dropped buffer was prepared");
    };
    assert_eq!(generation, id.generation());
    assert_eq!(reap_pinned(&ctx).unwrap(), 1);
    ctx.assert_clean(rig);
}

#[test]
fn no_bytes_and_impossible_sizes() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let mut empty = PinnedBuffer::<u32>::from_slice(&ctx, ctx.home(), &[]).unwrap();
    assert_eq!((empty.device_ptr(), empty.origin()), (0, MemoryOrigin::Empty));
    assert_eq!(empty.as_mut_slice().unwrap(), []);
    let mut nothing = DeviceBuffer::<u32>::uninit(&ctx, ctx.home(), 0).unwrap();
    empty.copy_to_device(&mut nothing, ctx.home()).unwrap();
    empty.copy_from_device(&nothing, ctx.home()).unwrap();
    let refused = PinnedMemory::new(rig.streams(), 0, ctx.home()).unwrap_err();
    assert!(matches!(refused, ResourceError::InvalidSize { requested: 0, .. }), "{refused:?}");
    for len in [usize::MAX, usize::MAX / 4, isize::MAX as usize / 4 + 1] {
        let refused = PinnedBuffer::<u32>::zeroed(&ctx, ctx.home(), len).unwrap_err();
        assert!(matches!(refused, BufferError::TooLong { .. }), "{refused:?}");
    }
    let mut short = DeviceBuffer::<u32>::zeroed(&ctx, ctx.home(), 3).unwrap();
    let refused = empty.copy_to_device(&mut short, ctx.home()).unwrap_err();
    assert!(matches!(refused, BufferError::PinnedLengthMismatch { .. }), "{refused:?}");
    drop((empty, nothing, short));
    ctx.assert_clean(rig);
}

#[test]
fn a_length_that_does_not_fit_is_refused_with_advice_that_can_be_followed() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let mut pinned = PinnedBuffer::<u32>::zeroed(&ctx, ctx.home(), 5).unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&ctx, ctx.home(), 8).unwrap();
    for (device_len, advice) in
        [(8, "slice the device buffer to 5"), (3, "slice the pinned buffer to 3")]
    {
        let refusals = [
            pinned.copy_from_device(buffer.slice(..device_len).unwrap(), ctx.home()),
            pinned.copy_to_device(buffer.slice_mut(..device_len).unwrap(), ctx.home()),
        ];
        for refused in refusals.map(|refused| refused.unwrap_err().to_string()) {
            let lengths =
                format!("5 pinned elements cannot be copied to or from {device_len} elements");
            assert!(refused.contains(&lengths) && refused.contains(advice), "{refused}");
        }
    }
    // What the advice says.
    pinned.copy_to_device(buffer.slice_mut(..5).unwrap(), ctx.home()).unwrap();
    let mut part = pinned.slice_mut(..3).unwrap();
    part.copy_from_device(buffer.slice(..3).unwrap(), ctx.home()).unwrap();
    drop((pinned, buffer));
    ctx.assert_clean(rig);
}

#[test]
fn a_pinned_buffer_outlives_its_context_and_changes_threads() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let lease = rig.stream();
    let pinned = PinnedBuffer::from_slice(&ctx, &lease, &[1u8, 2]).unwrap();
    drop(lease);
    let mut pinned = std::thread::spawn(move || pinned).join().unwrap();
    assert_eq!(pinned.as_slice().unwrap(), [1, 2]);
    drop(pinned);
    ctx.assert_clean(rig);
}
