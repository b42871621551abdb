//! D8: a copy to the host that a task awaits has the right elements, waits for nothing later, and
//! can be dropped.

use std::sync::Arc;
use std::task::Poll;

use crate::context::Context;
use dmr_buffer::pinned::reap_pinned;
use dmr_buffer::{BufferError, DeviceBuffer, HostCopy, ToHost};
use dmr_core::ResourceError;
use dmr_testkit::{CountedWakes, HeldStream, Rig, block_on};

const LEN: usize = 4096;

fn is_send_and_static<T: Send + Unpin + 'static>(_: &T) {}

#[test]
fn it_has_the_elements_of_its_turn_on_the_stream() {
    for make in [Context::direct, Context::tracked] {
        let rig = Rig::new();
        let ctx = make(&rig);
        let home = ctx.home();
        let mut buffer = DeviceBuffer::from_host(&ctx, home, &[1u32; LEN]).unwrap();
        let held = HeldStream::hold(rig.streams(), home);
        buffer.fill(2, home).unwrap();
        let all = buffer.to_host_async(home);
        let some = buffer.slice(1..3).unwrap().to_host_async(home);
        is_send_and_static(&all);
        buffer.fill(3, home).unwrap();
        held.release();
        let all: HostCopy<u32> = block_on(all).unwrap();
        assert_eq!((&all[..], all.len()), (&[2; LEN][..], LEN));
        assert_eq!(block_on(some).unwrap().to_vec(), [2, 2]);
        assert_eq!(block_on(buffer.to_host_async(home)).unwrap()[..], [3; LEN]);
        let mut pinned = all.into_pinned();
        pinned.as_mut_slice().unwrap().fill(4);
        pinned.copy_to_device(&mut buffer, home).unwrap();
        assert_eq!(block_on(buffer.to_host_async(home)).unwrap()[..], [4; LEN]);
        drop((held, pinned, buffer));
        ctx.assert_clean(rig);
    }
}

#[test]
fn it_is_not_ready_before_its_copy_is_done_and_needs_nothing_later() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let [writer, reader] = [rig.stream(), rig.stream()];
    let mut buffer = DeviceBuffer::<u8>::zeroed(&ctx, &writer, LEN).unwrap();
    let held = HeldStream::hold(rig.streams(), &writer);
    buffer.fill(7, &writer).unwrap();
    // On another stream, which waits for the fill.
    let mut copy = buffer.to_host_async(&reader);
    let behind = HeldStream::hold(rig.streams(), &reader);
    let wakes = Arc::new(CountedWakes::default());
    for _ in 0..3 {
        assert!(wakes.poll(&mut copy).is_pending());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(wakes.count(), 0);
    held.release();
    // The reader's stream is held up behind the copy.
    let host = block_on(&mut copy).unwrap();
    assert_eq!(host[..], [7; LEN]);
    assert!(wakes.poll(&mut copy).is_pending(), "it has returned its elements");
    behind.release();
    drop((host, copy, buffer, held, behind, writer, reader));
    ctx.assert_clean(rig);
}

#[test]
fn dropped_at_any_time_it_frees_its_memory_when_the_copy_is_done() {
    let rig = Rig::new();
    let ctx = Context::tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let mut buffer = DeviceBuffer::<u8>::zeroed(&ctx, &a, LEN).unwrap();
    let mut other = DeviceBuffer::<u8>::uninit(&ctx, &b, LEN).unwrap();
    for round in 0..20u8 {
        let held = HeldStream::hold(rig.streams(), &a);
        buffer.fill(round, &a).unwrap();
        let mut copies: Vec<ToHost<u8>> =
            [&a, &b, &a, &b].map(|it| buffer.to_host_async(it)).into();
        let wakes = Arc::new(CountedWakes::default());
        assert!(wakes.poll(&mut copies[1]).is_pending());
        copies.truncate(usize::from(round) % 5);
        // New pinned memory is not what a copy still writes.
        other.fill(0xee, &b).unwrap();
        let kept = other.to_host_async(&b);
        held.release();
        for copy in copies {
            assert_eq!(block_on(copy).unwrap()[..], [round; LEN]);
        }
        assert_eq!(block_on(kept).unwrap()[..], [0xee; LEN]);
        // The driver's free of pinned memory may wait for a stream that is held up.
        reap_pinned(&ctx).unwrap();
    }
    drop((buffer, other, a, b));
    ctx.assert_clean(rig);
}

#[test]
fn no_elements_and_no_bytes_are_ready_at_once_or_soon() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let empty = DeviceBuffer::<u64>::uninit(&ctx, ctx.home(), 0).unwrap();
    assert!(block_on(empty.to_host_async(ctx.home())).unwrap().is_empty());
    let nothing = DeviceBuffer::<()>::uninit(&ctx, ctx.home(), 9).unwrap();
    assert_eq!(block_on(nothing.to_host_async(ctx.home())).unwrap()[..], [(); 9]);
    drop((empty, nothing));
    ctx.assert_clean(rig);
}

#[test]
fn what_cannot_be_submitted_is_the_futures_error() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let other = rig.stream();
    let returned = {
        let lease = rig.stream();
        lease.id()
    };
    let buffer = DeviceBuffer::from_host(&ctx, ctx.home(), &[1u8; LEN]).unwrap();
    // The resource does not track uses: only the home stream will do.
    let second = if other.id().slot() == ctx.home().slot() { returned } else { other.id() };
    for stream in [second, returned] {
        let mut copy = buffer.to_host_async(stream);
        let wakes = Arc::new(CountedWakes::default());
        let Poll::Ready(Err(error)) = wakes.poll(&mut copy) else { panic!("{copy:?}") };
        let is_misuse = matches!(error, BufferError::Resource(ResourceError::StreamMisuse { .. }));
        assert!(is_misuse, "{error}");
    }
    drop((buffer, other));
    ctx.assert_clean(rig);
}
