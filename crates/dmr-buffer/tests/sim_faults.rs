//! Whatever driver call fails: nothing leaks, the accounting stays exact, no wrong data.

mod context;

use context::Context;
use dmr_buffer::{BufferError, DeviceBuffer};
use dmr_streams::DeviceContext;
use dmr_testkit::{Rig, for_each_driver_call};

/// The call again, if it failed: one call fails in each run.
fn insist<T>(mut call: impl FnMut() -> Result<T, BufferError>) -> T {
    call().or_else(|_| call()).expect("only one driver call fails")
}

#[test]
fn no_driver_call_that_fails_loses_memory_or_data() {
    let failed = for_each_driver_call(999, Context::direct, |rig, ctx| {
        let home = ctx.home();
        let x = insist(|| DeviceBuffer::from_host(&ctx, home, &[1u32, 2, 3]));
        let mut y = insist(|| DeviceBuffer::<u32>::zeroed(&ctx, home, 3));
        insist(|| y.copy_from(&x, home));
        insist(|| y.slice_mut(1..2)?.fill_bytes(0xff, home));
        assert_eq!(insist(|| y.to_host(home)), [1, u32::MAX, 3]);
        assert_eq!(ctx.resource().usage().live, 24);
        drop((x, y));
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
fn host_memory_that_the_device_may_still_write_is_not_freed() {
    let rig = Rig::simulated();
    let ctx = Context::direct(&rig);
    let buffer = DeviceBuffer::from_host(&ctx, ctx.home(), &[1u8; 64]).unwrap();
    // Neither the stream nor the device can be waited for.
    rig.universe().fail_nth("cuStreamSynchronize", 1, 999);
    rig.universe().fail_nth("cuCtxSynchronize", 1, 999);
    assert!(buffer.to_host(ctx.home()).is_err());
    rig.universe().fail_nth("cuStreamSynchronize", 1, 999);
    assert_eq!(buffer.to_host(ctx.home()).unwrap(), [1; 64], "the device was waited for");
    drop(buffer);
    ctx.assert_clean(rig);
}
