//! Properties of blocks, and exclusive use of their memory.

use std::collections::HashSet;

use super::support::{LARGE, Numbers, ODD, Outcome, Subject, TAG, ensure};
use crate::{BlockState, DeviceBlock};

pub(super) fn a_block_has_the_requested_properties(s: &Subject<'_>) -> Outcome {
    for bytes in [1, 255, 256, ODD, LARGE] {
        let block = s.allocate(bytes, s.b)?;
        let has_them = block.bytes() == bytes
            && block.reserved_bytes() >= bytes
            && block.device_ordinal() == s.resource.device_ordinal()
            && block.tag() == TAG
            && block.state() == BlockState::Live;
        let found = format!("{block:?}");
        s.deallocate(block)?;
        ensure!(
            has_them,
            "{bytes} bytes were requested on device {}: {found}",
            s.resource.device_ordinal()
        );
    }
    Ok(())
}

pub(super) fn live_blocks_never_overlap(s: &Subject<'_>) -> Outcome {
    let mut numbers = Numbers::seeded(1);
    let mut blocks: Vec<(DeviceBlock, u8)> = Vec::new();
    for round in 0..32_u8 {
        // Makes holes, so that memory is allocated a second time.
        if round % 4 == 3 {
            let (block, _) = blocks.swap_remove(numbers.below(blocks.len()));
            s.deallocate(block)?;
        }
        let stream = if round % 2 == 0 { s.a } else { s.b };
        let block = s.allocate(1 + numbers.below(20_000), stream)?;
        for (other, _) in &blocks {
            ensure!(!overlap(&block, other), "{block:?} overlaps {other:?}, and both are live");
        }
        s.fill(stream, &block, round)?;
        blocks.push((block, round));
    }
    for (block, byte) in &blocks {
        s.expect(block.alloc_stream(), block, *byte)?;
    }
    s.deallocate_all(blocks.into_iter().map(|(block, _)| block))
}

pub(super) fn overlap(one: &DeviceBlock, other: &DeviceBlock) -> bool {
    let end = |block: &DeviceBlock| block.ptr() + block.reserved_bytes() as u64;
    one.ptr() < end(other) && other.ptr() < end(one)
}

pub(super) fn generations_are_never_reused(s: &Subject<'_>) -> Outcome {
    let mut seen = HashSet::new();
    let mut held = Vec::new();
    for round in 0..48 {
        let block = s.allocate(ODD, s.a)?;
        let generation = block.generation();
        let fresh = seen.insert(block.generation());
        ensure!(block.id().generation() == generation, "a block and its id disagree");
        // Most are deallocated at once, so that their addresses are allocated again.
        if round % 8 == 0 {
            held.push(block)
        } else {
            s.deallocate(block)?
        }
        if round % 16 == 15 {
            s.reap_pending()?;
        }
        ensure!(fresh, "generation {generation} was on another block before");
    }
    s.deallocate_all(held)
}

pub(super) fn contents_survive_until_deallocate(s: &Subject<'_>) -> Outcome {
    let block = s.allocate(LARGE, s.a)?;
    s.fill(s.a, &block, 0xa1)?;
    s.expect(s.a, &block, 0xa1)?;
    // Allocating, deallocating and reaping other blocks does not affect the block.
    for _ in 0..4 {
        let other = s.allocate(LARGE, s.b)?;
        s.fill(s.b, &other, 0xb2)?;
        s.deallocate(other)?;
        s.try_reap()?;
    }
    s.reap_pending()?;
    s.expect(s.a, &block, 0xa1)?;
    // When all work is done, the other stream may use it, too.
    s.synchronize()?;
    s.expect(s.b, &block, 0xa1)?;
    s.fill(s.b, &block, 0xb1)?;
    s.synchronize()?;
    s.expect(s.a, &block, 0xb1)?;
    s.deallocate(block)
}

/// Work on the home stream needs no recorder: a later allocation on any stream comes after it.
pub(super) fn freed_memory_is_not_written_late(s: &Subject<'_>) -> Outcome {
    let one_way = [(s.a, s.b), (s.b, s.a), (s.a, s.a)];
    for (byte, (before, after)) in (1..).zip(one_way) {
        let first = s.allocate(LARGE, before)?;
        s.delay(before)?;
        s.fill(before, &first, 0xf0)?;
        s.deallocate(first)?;
        s.try_reap()?;
        let second = s.allocate(LARGE, after)?;
        s.fill(after, &second, byte)?;
        s.expect(after, &second, byte)?;
        s.synchronize()?;
        s.expect(after, &second, byte)?;
        s.deallocate(second)?;
    }
    Ok(())
}
