//! R4: an empty recorder, or one whose every use was skipped, asks nothing of any resource.

use crate::spy::{Call, Context, External, Nothing};
use dmr_launch::LaunchRecorder;

const NONE: [Call; 0] = [];

#[test]
fn an_empty_recorder_is_a_no_op_on_any_resource() {
    let _alone = crate::ALONE.lock();
    let before = dmr_launch::unfinished_launches();
    for ctx in [Context::tracking(), Context::untracking()] {
        for new in [LaunchRecorder::new_strict, LaunchRecorder::new_permissive] {
            new(ctx.stream()).prepare(&ctx).unwrap().finish().unwrap();
            new(ctx.stream()).prepare(&ctx).unwrap().cancel().unwrap();
            assert_eq!(new(ctx.stream()).launch(&ctx, |_| Ok::<_, ()>(7)).unwrap(), 7);
            drop(new(ctx.stream()).prepare(&ctx).unwrap());
        }
        assert_eq!(ctx.calls(), NONE);
    }
    assert_eq!(dmr_launch::unfinished_launches(), before);
}

#[test]
fn memory_without_bytes_is_no_use_and_not_skipped() {
    let ctx = Context::untracking();
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    recorder.read(&Nothing);
    recorder.write(&mut Nothing);
    let launch = recorder.prepare(&ctx).unwrap();
    assert_eq!((launch.recorded_count(), launch.skipped_count()), (0, 0));
    launch.finish().unwrap();
    assert_eq!(ctx.calls(), NONE);
}

#[test]
fn a_launch_whose_every_use_was_skipped_is_a_no_op() {
    let ctx = Context::untracking();
    let mut recorder = LaunchRecorder::new_permissive(ctx.stream());
    recorder.read(&External("theirs", 1));
    recorder.read(&ctx.block());
    let launch = recorder.prepare(&ctx).unwrap();
    assert_eq!((launch.recorded_count(), launch.skipped_count()), (0, 2));
    launch.finish().unwrap();
    assert_eq!(ctx.calls(), NONE);
}
