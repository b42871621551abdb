//! R1: recording takes a snapshot, ends the borrow and returns a `Copy` kernel argument.

use std::sync::Arc;

use crate::spy::{Context, External, Nothing};
use dmr_launch::LaunchRecorder;
use dmr_streams::KernelArg;

#[test]
fn a_buffer_is_free_again_once_it_is_recorded() {
    let ctx = Context::tracking();
    let mut block = ctx.block_at(0x4000);
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    let first: KernelArg = recorder.write(&mut block);
    let second = recorder.read_write(&mut block);
    let copy = first;
    assert_eq!([first, copy, second].map(KernelArg::device_ptr), [0x4000; 3]);
    drop(block);
    recorder.launch(&ctx, |_| Ok::<_, ()>(())).unwrap();
    assert_eq!(ctx.calls().len(), 2);
}

#[test]
fn the_argument_is_the_address_whatever_the_memory_is() {
    let ctx = Context::tracking();
    let mut recorder = LaunchRecorder::new_permissive(ctx.stream());
    assert_eq!(recorder.read(&ctx.block_at(0x7000)).device_ptr(), 0x7000);
    assert_eq!(recorder.read(&External("theirs", 0x9000)).device_ptr(), 0x9000);
    assert_eq!(recorder.read(&Nothing).device_ptr(), 0);
}

#[test]
fn shared_memory_is_recorded_as_the_memory_that_it_leads_to() {
    let ctx = Context::tracking();
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    let weights = Arc::new(ctx.block_at(0x4000));
    let clone = Arc::clone(&weights);
    let mut boxed = Box::new(ctx.block_at(0x5000));
    assert_eq!(recorder.read(&weights).device_ptr(), 0x4000);
    assert_eq!(recorder.read(&clone).device_ptr(), 0x4000);
    assert_eq!(recorder.write(&mut boxed).device_ptr(), 0x5000);
    assert_eq!(recorder.write(&mut &mut *boxed).device_ptr(), 0x5000);
    assert_eq!(recorder.recorded_count(), 2);
    recorder.launch(&ctx, |_| Ok::<_, ()>(())).unwrap();
}

#[test]
fn a_prepared_launch_outlives_the_context_and_can_change_threads() {
    let ctx = Context::tracking();
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    recorder.read(&ctx.block());
    let launch = recorder.prepare(&ctx).unwrap();
    let spy = Arc::clone(&ctx.spy);
    drop(ctx);
    std::thread::spawn(move || launch.finish().unwrap()).join().unwrap();
    assert_eq!(Arc::strong_count(&spy), 1);
}
