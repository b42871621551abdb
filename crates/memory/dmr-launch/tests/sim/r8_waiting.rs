//! R8: a launch that waits for a window opens none meanwhile, and returns at once when the device
//! is lost.

use std::time::{Duration, Instant};

use crate::counting::{Context, LONG};
use dmr_core::{AllocTag, ResourceError};
use dmr_launch::{LaunchRecorder, PrepareError};
use dmr_streams::DeviceContext;
use dmr_testkit::Rig;

const ILLEGAL_ADDRESS: i32 = 700;

/// Its window would refuse a launch that need not wait.
#[test]
fn a_launch_that_waits_opens_no_window_meanwhile() {
    let rig = Rig::simulated();
    let ctx = Context::new(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let mut block = ctx.resource().allocate(256, a.id(), AllocTag::UNTAGGED).unwrap();
    let mut held = LaunchRecorder::new_strict(&a);
    held.write(&mut block);
    let held = held.prepare(&ctx).unwrap();
    let mut launch = LaunchRecorder::new_strict(&b).with_timeout(LONG);
    launch.read(&block);
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| launch.prepare(&ctx).unwrap().finish().unwrap());
        // That of the other launch, and the first try.
        ctx.wait_until_prepared(2);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished(), "it does not wait for the window");
        assert_eq!(ctx.prepared(), 2);
        held.finish().unwrap();
        waiting.join().unwrap();
    });
    ctx.resource().deallocate(block).unwrap();
    drop((ctx, a, b));
    rig.assert_clean();
}

#[test]
fn a_launch_does_not_wait_for_a_window_on_a_lost_device() {
    let rig = Rig::simulated();
    let ctx = Context::new(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let mut block = ctx.resource().allocate(256, a.id(), AllocTag::UNTAGGED).unwrap();
    let mut held = LaunchRecorder::new_strict(&a);
    held.write(&mut block);
    let held = held.prepare(&ctx).unwrap();
    let mut launch = LaunchRecorder::new_strict(&b).with_timeout(LONG);
    launch.read(&block);
    let begun = Instant::now();
    let refused = std::thread::scope(|threads| {
        let waiting = threads.spawn(|| launch.prepare(&ctx).map(drop));
        ctx.wait_until_prepared(2);
        assert!(!waiting.is_finished(), "it does not wait for the window");
        rig.universe().lose_device(0, ILLEGAL_ADDRESS);
        waiting.join().unwrap().unwrap_err()
    });
    assert!(begun.elapsed() < LONG / 2, "it waits for its timeout");
    let PrepareError::Resource { source, .. } = &refused else { panic!("{refused}") };
    let is_lost = matches!(
        source,
        ResourceError::DeviceLost { .. } | ResourceError::Driver { code: 700, .. }
    );
    assert!(is_lost, "{refused}");
    drop(held);
    ctx.resource().deallocate(block).unwrap();
}
