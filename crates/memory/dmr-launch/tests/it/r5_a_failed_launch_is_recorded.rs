//! R5: the scoped form does all three steps, and records the uses if the closure fails.

use std::sync::atomic::Ordering;

use crate::spy::{Call, Context};
use dmr_core::Access::{Read, Write};
use dmr_core::{BlockUse, ResourceError, StreamId};
use dmr_launch::{LaunchError, LaunchRecorder};

fn recorder(ctx: &Context) -> LaunchRecorder {
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    recorder.read(&ctx.block());
    recorder
}

#[test]
fn the_closure_runs_between_preparing_and_finishing_on_the_stream_that_was_named() {
    let ctx = Context::tracking();
    let lease = ctx.rig.stream();
    let x = ctx.block_at(0x1000);
    let mut y = ctx.block_at(0x2000);
    let mut recorder = LaunchRecorder::new_strict(&lease);
    recorder.read(&x);
    recorder.write(&mut y);
    let mut seen = None;
    let result = recorder.launch(&ctx, |stream| {
        let same = std::sync::Arc::ptr_eq(stream, lease.stream());
        seen = Some((ctx.calls(), same));
        Ok::<_, std::io::Error>(42)
    });
    assert_eq!(result.unwrap(), 42);
    let uses = vec![BlockUse::new(x.id(), Read), BlockUse::new(y.id(), Write)];
    assert_eq!(seen, Some((vec![Call::Prepare(uses, lease.id())], true)));
    assert_eq!(ctx.calls(), [Call::Finish(2)]);
}

#[test]
fn the_default_stream_is_resolved_before_the_resource_sees_it() {
    let ctx = Context::tracking();
    let block = ctx.block();
    let mut recorder = LaunchRecorder::new_strict(StreamId::DEFAULT);
    recorder.read(&block);
    let launch = recorder.prepare(&ctx).unwrap();
    assert_eq!(launch.launch_stream(), ctx.stream());
    launch.finish().unwrap();
    assert_eq!(ctx.calls()[0], ctx.prepared(&[(&block, Read)]));
}

#[test]
fn a_closure_that_fails_leaves_its_uses_recorded() {
    let ctx = Context::tracking();
    let result = recorder(&ctx).launch(&ctx, |_| Err::<(), _>(std::fmt::Error));
    let Err(LaunchError::Enqueue { error: std::fmt::Error, finish: None, .. }) = result else {
        panic!("{result:?}");
    };
    assert_eq!(ctx.calls()[1..], [Call::Finish(1)]);
}

#[test]
fn the_error_says_at_which_step_it_went_wrong() {
    let ctx = Context::tracking();
    ctx.spy.fails_finish.store(true, Ordering::Relaxed);
    let result = recorder(&ctx).launch(&ctx, |_| Ok::<_, std::fmt::Error>(()));
    let Err(LaunchError::Finish(ResourceError::Driver { call: "cuEventRecord", .. })) = result
    else {
        panic!("{result:?}");
    };
    let result = recorder(&ctx).launch(&ctx, |_| Err::<(), _>(std::fmt::Error));
    let Err(LaunchError::Enqueue { finish: Some(ResourceError::Driver { .. }), .. }) = result
    else {
        panic!("{result:?}");
    };
}

#[test]
fn cancel_records_nothing() {
    let ctx = Context::tracking();
    recorder(&ctx).prepare(&ctx).unwrap().cancel().unwrap();
    assert_eq!(ctx.calls()[1..], [Call::Cancel(1)]);
}
