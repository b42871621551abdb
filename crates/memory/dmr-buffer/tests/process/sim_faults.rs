//! Whatever driver call fails: nothing leaks, the accounting stays exact, no wrong data.

use crate::context::Context;
use dmr_buffer::pinned::{reap_pinned, trim_pinned};
use dmr_buffer::{BufferError, DeviceBuffer, PinnedBuffer};
use dmr_pinned::PinnedPool;
use dmr_streams::DeviceContext;
use dmr_testkit::{Rig, for_each_driver_call};

/// The call again, if it failed: one call fails in each run.
fn insist<T>(mut call: impl FnMut() -> Result<T, BufferError>) -> T {
    call().or_else(|_| call()).expect("only one driver call fails")
}

#[test]
fn no_driver_call_that_fails_loses_memory_or_data() {
    let _alone = crate::ALONE.lock();
    let failed = for_each_driver_call(999, Context::direct, |rig, ctx| {
        let home = ctx.home();
        let x = insist(|| DeviceBuffer::from_host(&ctx, home, &[1u32, 2, 3]));
        let mut y = insist(|| DeviceBuffer::<u32>::zeroed(&ctx, home, 3));
        insist(|| y.copy_from(&x, home));
        insist(|| y.slice_mut(1..2)?.fill_bytes(0xff, home));
        assert_eq!(insist(|| y.to_host(home)), [1, u32::MAX, 3]);
        let mut z = insist(|| DeviceBuffer::<f64>::uninit(&ctx, home, 3));
        insist(|| z.fill(1.1, home));
        assert_eq!(insist(|| z.to_host(home)), [1.1; 3]);
        assert_eq!(ctx.resource().usage().live, 48);
        drop((x, y, z));
        let reaped = ctx.resource().reap_pending().or_else(|_| ctx.resource().reap_pending());
        reaped.unwrap();
        assert_eq!(ctx.resource().bytes_outstanding(), 0);
        drop(ctx);
        let verdict = rig.universe().finish();
        assert!(verdict.is_clean(), "{verdict}");
    });
    assert!(failed >= 10, "{failed} calls were failed");
}

#[test]
fn no_driver_call_that_fails_loses_pinned_memory() {
    let _alone = crate::ALONE.lock();
    let prepare = |rig: &Rig| (Context::tracked(rig), [rig.stream(), rig.stream()]);
    let failed = for_each_driver_call(999, prepare, |rig, (ctx, [a, b])| {
        let mut up = insist(|| PinnedBuffer::from_slice(&ctx, &a, &[1u32, 2, 3]));
        let mut down = insist(|| PinnedBuffer::<u32>::zeroed(&ctx, &a, 3));
        let mut x = insist(|| DeviceBuffer::<u32>::uninit(&ctx, &b, 3));
        insist(|| up.copy_to_device(&mut x, &b));
        insist(|| down.copy_from_device(&x, &a));
        insist(|| up.as_mut_slice().map(|host| host.fill(9)));
        assert_eq!(insist(|| down.as_slice().map(<[u32]>::to_vec)), [1, 2, 3]);
        drop((up, down, x));
        reap_pinned(&ctx).or_else(|_| reap_pinned(&ctx)).unwrap();
        trim_pinned(&ctx, 0).or_else(|_| trim_pinned(&ctx, 0)).unwrap();
        assert_eq!(PinnedPool::of(ctx.streams()).usage().reserved, 0);
        let failures = dmr_buffer::failures::take_drop_failures();
        failures.into_iter().for_each(|failure| failure.retry().unwrap());
        let resource = ctx.resource();
        resource.reap_pending().or_else(|_| resource.reap_pending()).unwrap();
        assert_eq!(resource.bytes_outstanding(), 0);
        drop((ctx, a, b));
        let verdict = rig.universe().finish();
        assert!(verdict.is_clean(), "{verdict}");
    });
    assert!(failed >= 15, "{failed} calls were failed");
}

#[test]
fn a_copy_whose_stream_cannot_be_waited_for_waits_for_an_event_or_is_an_error() {
    let rig = Rig::simulated();
    let ctx = Context::direct(&rig);
    let buffer = DeviceBuffer::from_host(&ctx, ctx.home(), &[1u8; 64]).unwrap();
    // Neither the stream nor an event can be waited for.
    rig.universe().fail_nth("cuStreamSynchronize", 1, 999);
    rig.universe().fail_nth("cuEventSynchronize", 1, 999);
    assert!(buffer.to_host(ctx.home()).is_err());
    rig.universe().fail_nth("cuStreamSynchronize", 1, 999);
    assert_eq!(buffer.to_host(ctx.home()).unwrap(), [1; 64], "the event was waited for");
    drop(buffer);
    ctx.assert_clean(rig);
}
