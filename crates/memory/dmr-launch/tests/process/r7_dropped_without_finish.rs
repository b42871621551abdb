//! R7: a recorder dropped without launch or finish is counted, a prepared one records, and neither
//! panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use crate::spy::{Call, Context};
use dmr_launch::{LaunchRecorder, unfinished_launches};

fn recorder(ctx: &Context) -> LaunchRecorder {
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    recorder.read(&ctx.block());
    recorder
}

#[test]
fn a_launch_that_is_not_committed_is_recorded_and_counted() {
    let _alone = crate::ALONE.lock();
    let ctx = Context::tracking();
    let mut count = unfinished_launches();
    let mut counted = |new| {
        count += new;
        assert_eq!(unfinished_launches(), count);
    };

    drop(recorder(&ctx));
    assert_eq!(ctx.calls(), [], "nothing is open before prepare");
    counted(1);
    drop(LaunchRecorder::new_strict(ctx.stream()));
    counted(0);
    recorder(&ctx).prepare(&ctx).unwrap().finish().unwrap();
    recorder(&ctx).prepare(&ctx).unwrap().cancel().unwrap();
    ctx.calls();
    counted(0);

    drop(recorder(&ctx).prepare(&ctx).unwrap());
    assert_eq!(ctx.calls()[1..], [Call::Finish(1)]);
    counted(1);

    let panicked = catch_unwind(AssertUnwindSafe(|| {
        recorder(&ctx).launch(&ctx, |_| -> Result<(), ()> { panic!("in the closure") })
    }));
    assert!(panicked.is_err());
    assert_eq!(ctx.calls()[1..], [Call::Finish(1)]);
    counted(1);

    ctx.spy.fails_finish.store(true, Ordering::Relaxed);
    drop(recorder(&ctx).prepare(&ctx).unwrap());
    counted(1);

    ctx.spy.panics_in_finish.store(true, Ordering::Relaxed);
    drop(recorder(&ctx).prepare(&ctx).unwrap());
    counted(1);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        recorder(&ctx).launch(&ctx, |_| -> Result<(), ()> { panic!("in the closure") })
    }));
    assert!(panicked.is_err(), "two panics, one inside the other, and the process lives");
    counted(1);
}
