//! Windows between preparing and finishing a use: U6, U7 and U15.

use super::support::{Failure, LARGE, ODD, Outcome, Subject, ensure, ensure_refused};
use super::tracking::refuses;
use crate::Access::{self, Read, ReadWrite, Write};
use crate::size::BLOCK_ALIGNMENT;
use crate::{
    BlockId, BlockUse, ByteRange, DeviceBlock, ResourceError, StreamId, UseTokens, UseTrackingExt,
};

pub(super) fn a_conflicting_window_is_refused(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let block = s.allocate(ODD, s.a)?;
    for (held, asked) in
        [(Write, Read), (Write, Write), (ReadWrite, Read), (Read, Write), (Read, ReadWrite)]
    {
        let token = s.prepare(block.id(), s.b, held)?;
        is_conflict(s, block.id(), s.a, asked, s.b)?;
        // The refused call has not closed the window, and a second call is refused as well.
        is_conflict(s, block.id(), s.a, asked, s.b)?;
        s.finish(token)?;
        // No window is open any more.
        s.used(&block, s.a, asked, || Ok(()))?;
    }
    s.deallocate(block)
}

fn is_conflict(
    s: &Subject<'_>,
    block: BlockId,
    stream: StreamId,
    asked: Access,
    held_by: StreamId,
) -> Outcome {
    let one = s.resource.prepare_block_use(block, stream, asked).map(drop);
    let several = s.resource.prepare_uses(&[BlockUse::new(block, asked)], stream).map(drop);
    for result in [one, several] {
        ensure_refused!(
            format!("{asked:?} on {stream} while {held_by} has a conflicting window open"),
            result,
            ResourceError::WindowConflict { generation, holder, requested, access, .. }
                if (generation, holder, requested, access)
                    == (block.generation(), held_by, stream, asked)
        );
    }
    Ok(())
}

pub(super) fn windows_on_one_stream_nest(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let block = s.allocate(ODD, s.a)?;
    let outer = s.prepare(block.id(), s.b, Write)?;
    let inner = s.prepare(block.id(), s.b, Read)?;
    let tokens = s.prepare_all(&[BlockUse::new(block.id(), ReadWrite)], s.b)?;
    s.fill(s.b, &block, 1)?;
    s.finish(inner)?;
    s.finish(tokens)?;
    // The outer window is still open, and its use writes.
    is_conflict(s, block.id(), s.a, Read, s.b)?;
    s.finish(outer)?;
    s.used(&block, s.a, Read, || s.expect(s.a, &block, 1))?;
    s.deallocate(block)
}

/// Returns the left and the right half of a large block, each aligned as a block is.
fn halves(block: &DeviceBlock) -> [ByteRange; 2] {
    let half = block.bytes() / 2 / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
    [
        ByteRange::new(block.ptr(), half),
        ByteRange::new(block.ptr() + half as u64, block.bytes() - half),
    ]
}

fn open_part(
    s: &Subject<'_>,
    block: &DeviceBlock,
    stream: StreamId,
    access: Access,
    bytes: ByteRange,
) -> Outcome<UseTokens> {
    s.prepare_all(&[BlockUse::of_bytes(block.id(), access, bytes)], stream)
}

pub(super) fn disjoint_parts_do_not_conflict(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let block = s.allocate(LARGE, s.a)?;
    let [left, right] = halves(&block);
    let on_b = open_part(s, &block, s.b, Write, left)?;
    let on_a = open_part(s, &block, s.a, Write, right)?;
    is_conflict(s, block.id(), s.a, Read, s.b)?;
    is_conflict(s, block.id(), s.b, Read, s.a)?;
    let last_of_left = ByteRange::new(left.end() - 1, 2);
    ensure_refused!(
        "a use of one byte of the other stream's half",
        s.resource
            .prepare_uses(&[BlockUse::of_bytes(block.id(), Read, last_of_left)], s.a)
            .map(drop),
        ResourceError::WindowConflict { .. }
    );
    s.cancel(on_b)?;
    s.cancel(open_part(s, &block, s.a, Write, left)?)?;
    is_conflict(s, block.id(), s.b, Read, s.a)?;
    s.finish(on_a)?;
    s.deallocate(block)
}

pub(super) fn the_whole_waits_for_its_parts(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let mut block = s.allocate(LARGE, s.a)?;
    let halves = halves(&block);
    for (stream, bytes) in [(s.b, halves[0]), (s.a, halves[1])] {
        let tokens = open_part(s, &block, stream, Write, bytes)?;
        let offset = bytes.start() - block.ptr();
        let len = bytes.end() - bytes.start();
        let narrowed = block.narrow(offset as usize, len as usize);
        let (part, whole) = narrowed.map_err(|_| Failure::new("a half cannot be narrowed to"))?;
        s.delay(stream)?;
        s.fill(stream, &part, 0xf0)?;
        s.finish(tokens)?;
        let restored = whole.restore(part);
        block = restored.map_err(|_| Failure::new("the whole cannot be restored"))?;
    }
    s.used(&block, s.a, Read, || s.expect(s.a, &block, 0xf0))?;
    s.used(&block, s.b, Read, || s.expect(s.b, &block, 0xf0))?;
    s.deallocate(block)
}

pub(super) fn readers_share_a_block(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let block = s.allocate(ODD, s.a)?;
    s.used(&block, s.a, Write, || s.fill(s.a, &block, 1))?;
    let [on_a, on_b] = [s.prepare(block.id(), s.a, Read)?, s.prepare(block.id(), s.b, Read)?];
    s.expect(s.a, &block, 1)?;
    s.expect(s.b, &block, 1)?;
    s.finish(on_a)?;
    is_conflict(s, block.id(), s.a, Write, s.b)?;
    s.finish(on_b)?;
    s.deallocate(block)
}

pub(super) fn preparing_several_blocks_is_all_or_nothing(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let [first, held, last] = [s.allocate(ODD, s.a)?, s.allocate(ODD, s.a)?, s.allocate(ODD, s.a)?];
    let freed = s.allocate(ODD, s.a)?;
    let stale = freed.id();
    s.deallocate(freed)?;

    let window = s.prepare(held.id(), s.b, Write)?;
    let writes = |ids: [BlockId; 3]| ids.map(|id| BlockUse::new(id, Write));
    let conflict = writes([first.id(), held.id(), last.id()]);
    ensure_refused!(
        "preparing three blocks, one of them held,",
        s.resource.prepare_uses(&conflict, s.a).map(drop),
        ResourceError::WindowConflict { .. }
    );
    s.finish(window)?;
    ensure_refused!(
        "preparing three blocks, one of them freed,",
        s.resource.prepare_uses(&writes([first.id(), stale, last.id()]), s.a).map(drop),
        ResourceError::UseAfterFree { .. }
    );
    // No window of stream A was left open by either.
    for block in [&first, &held, &last] {
        s.used(block, s.b, Write, || s.fill(s.b, block, 1))?;
    }
    let tokens = s.prepare_all(&conflict, s.a)?;
    ensure!(tokens.len() == 3, "three blocks were prepared, {} windows opened", tokens.len());
    for block in [&first, &held, &last] {
        s.expect(s.a, block, 1)?;
    }
    s.finish(tokens)?;
    s.deallocate_all([first, held, last])
}

pub(super) fn a_cancelled_use_leaves_no_window(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let block = s.allocate(ODD, s.a)?;
    s.used(&block, s.a, Write, || s.fill(s.a, &block, 1))?;
    let tokens = s.prepare_all(&[BlockUse::new(block.id(), Write)], s.b)?;
    s.cancel(tokens)?;
    s.used(&block, s.a, ReadWrite, || s.fill(s.a, &block, 2))?;
    s.used(&block, s.b, Read, || s.expect(s.b, &block, 2))?;
    s.deallocate(block)
}

pub(super) fn a_block_deallocated_inside_a_window_outlives_it(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let first = s.allocate(LARGE, s.a)?;
    let token = s.prepare(first.id(), s.b, Write)?;
    s.delay(s.b)?;
    s.fill(s.b, &first, 0xf0)?;
    // `deallocate` consumes the block, so the addresses are kept.
    let address = first.ptr()..first.ptr() + first.bytes() as u64;
    s.deallocate(first)?;
    let still_retired = |when: &str| {
        let usage = s.usage()?;
        ensure!(
            (usage.live, usage.retired) == (0, LARGE as u64),
            "{when}, with its window open, the block is not retired: {usage:?}"
        );
        Ok(())
    };
    still_retired("deallocated")?;
    s.try_reap()?;
    still_retired("reaped")?;
    s.synchronize()?;
    s.reap_pending()?;
    still_retired("all work done, and reap_pending called")?;
    let second = s.allocate(LARGE, s.a)?;
    let taken = address.contains(&second.ptr())
        || (second.ptr()..second.ptr() + second.bytes() as u64).contains(&address.start);
    s.fill(s.a, &second, 1)?;
    s.finish(token)?;
    s.expect(s.a, &second, 1)?;
    s.deallocate(second)?;
    s.reap_pending()?;
    let usage = s.usage()?;
    if taken {
        return Err(Failure::new("its memory was allocated again while the window was open"));
    }
    ensure!(usage.outstanding() == 0, "the window is closed, and all was reaped: {usage:?}");
    Ok(())
}
