//! R6: strict rejects external and untracked memory, naming it; permissive skips and counts.

use crate::spy::{Call, Context, External};
use dmr_core::Access::Write;
use dmr_core::AllocTag;
use dmr_launch::{LaunchMode, LaunchRecorder};

#[test]
fn strict_names_the_external_memory_and_the_reason() {
    let ctx = Context::tracking();
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    recorder.read(&ctx.block());
    recorder.read(&External("arrow:price", 1));
    recorder.read(&External("arrow:volume", 2));
    assert_eq!(
        recorder.prepare(&ctx).unwrap_err().to_string(),
        "launch on stream 0 refused: buffer \"arrow:price\" is external memory, its producer's \
         order is unknown: adopt it with its producer's stream or event (`AdoptedColumn::adopt`), copy it into a device buffer, or order it yourself and use a permissive \
         recorder"
    );
    assert_eq!(ctx.calls(), []);
}

#[test]
fn a_column_is_named_as_it_was_recorded() {
    let ctx = Context::untracking();
    let price = AllocTag::new("price");
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    recorder.write_column(price, &mut External("arrow:3", 1));
    let message = recorder.prepare(&ctx).unwrap_err().to_string();
    assert!(message.contains("column \"price\" (buffer \"arrow:3\") is external"), "{message}");

    let block = ctx.block();
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    recorder.read_column(price, &block);
    let message = recorder.prepare(&ctx).unwrap_err().to_string();
    let named = format!("column \"price\" (block {}) cannot be tracked", block.generation());
    assert!(message.contains(&named), "{message}");
}

#[test]
fn permissive_orders_what_it_can_and_counts_the_rest() {
    let ctx = Context::tracking();
    let other = Context::tracking();
    let mut mine = ctx.block();
    let theirs = other.block();
    let mut recorder = LaunchRecorder::new_permissive(ctx.stream());
    recorder.read(&theirs);
    recorder.write(&mut mine);
    assert_eq!((recorder.recorded_count(), recorder.skipped_count()), (2, 0));
    recorder.read(&External("arrow:price", 1));
    recorder.read(&External("arrow:volume", 2));
    assert_eq!((recorder.recorded_count(), recorder.skipped_count()), (2, 2));
    let launch = recorder.prepare(&ctx).unwrap();
    assert_eq!((launch.recorded_count(), launch.skipped_count()), (1, 3));
    assert_eq!(launch.mode(), LaunchMode::Permissive);
    launch.finish().unwrap();
    assert_eq!(ctx.calls(), [ctx.prepared(&[(&mine, Write)]), Call::Finish(1)]);
}
