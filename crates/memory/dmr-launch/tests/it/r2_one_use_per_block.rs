//! R2: uses of the same bytes of one block collapse into one; those of other bytes, and two
//! generations at one address, never do.

use crate::spy::{Call, Context};
use dmr_core::Access::{Read, ReadWrite, Write};
use dmr_core::{Access, BlockUse, ByteRange, DeviceBlock};
use dmr_launch::LaunchRecorder;
use dmr_streams::{MemoryOrigin, TrackedMemory};

/// Some bytes of a block.
struct Part<'a> {
    block: &'a DeviceBlock,
    start: usize,
    bytes: usize,
}

impl TrackedMemory for Part<'_> {
    fn device_ptr(&self) -> u64 {
        self.block.ptr() + self.start as u64
    }

    fn size_in_bytes(&self) -> usize {
        self.bytes
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        MemoryOrigin::Block(self.block.id())
    }
}

fn record(recorder: &mut LaunchRecorder, block: &mut DeviceBlock, access: Access) {
    match access {
        Read => recorder.read(block),
        Write => recorder.write(block),
        ReadWrite => recorder.read_write(block),
    };
}

#[test]
fn two_uses_of_a_block_are_one_with_the_combined_access() {
    let ctx = Context::tracking();
    for (first, second, both) in [
        (Read, Read, Read),
        (Read, Write, ReadWrite),
        (Write, Read, ReadWrite),
        (Write, Write, Write),
        (Read, ReadWrite, ReadWrite),
        (ReadWrite, Write, ReadWrite),
    ] {
        let mut block = ctx.block();
        let mut recorder = LaunchRecorder::new_strict(ctx.stream());
        record(&mut recorder, &mut block, first);
        record(&mut recorder, &mut block, second);
        assert_eq!(recorder.recorded_count(), 1);
        recorder.prepare(&ctx).unwrap().finish().unwrap();
        assert_eq!(ctx.calls(), [ctx.prepared(&[(&block, both)]), Call::Finish(1)]);
    }
}

#[test]
fn two_generations_at_one_address_are_two_uses() {
    let ctx = Context::tracking();
    let old = ctx.block_at(0x8000);
    let new = ctx.block_at(0x8000);
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    assert_eq!(recorder.read(&old), recorder.read(&new));
    assert_eq!(recorder.recorded_count(), 2);
    recorder.prepare(&ctx).unwrap().finish().unwrap();
    assert_eq!(ctx.calls()[0], ctx.prepared(&[(&old, Read), (&new, Read)]));
}

#[test]
fn all_blocks_of_a_launch_are_prepared_in_one_call_in_the_order_of_recording() {
    let ctx = Context::tracking();
    let mut blocks: Vec<_> = (0..20).map(|i| ctx.block_at(0x1000 * i)).collect();
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    for block in &mut blocks {
        recorder.write(block);
    }
    let launch = recorder.prepare(&ctx).unwrap();
    assert_eq!(launch.recorded_count(), 20);
    launch.finish().unwrap();
    let uses: Vec<_> = blocks.iter().map(|block| (block, Write)).collect();
    assert_eq!(ctx.calls(), [ctx.prepared(&uses), Call::Finish(20)]);
}

#[test]
fn uses_of_other_bytes_of_a_block_are_other_uses() {
    let ctx = Context::tracking();
    let block = ctx.block_at(0x8000);
    let part = |start, bytes| Part { block: &block, start, bytes };
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    assert_eq!(recorder.read(&part(8, 8)).device_ptr(), 0x8008);
    recorder.write(&mut part(0, 8));
    recorder.write(&mut part(8, 8));
    recorder.read(&part(4, 8));
    recorder.read(&block);
    assert_eq!(recorder.recorded_count(), 4);
    recorder.prepare(&ctx).unwrap().finish().unwrap();
    let of = |access, start: u64, bytes| {
        BlockUse::of_bytes(block.id(), access, ByteRange::new(0x8000 + start, bytes))
    };
    let whole = BlockUse::new(block.id(), Read);
    let uses = [of(ReadWrite, 8, 8), of(Write, 0, 8), of(Read, 4, 8), whole];
    assert_eq!(ctx.calls()[0], Call::Prepare(uses.into(), ctx.stream()));
}
