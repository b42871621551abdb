//! Tests of the slots without a stream pool.

use dmr_core::{
    Access, AllocTag, BlockParts, BlockSlot, BlockState, DeviceBlock, Generation, StreamPoolId,
    UseTokens,
};

use super::*;
use crate::uses::slot_state::Occupant;

fn id(slot: BlockSlot, generation: Generation, alloc_stream: StreamId) -> BlockId {
    let parts = BlockParts {
        ptr: 256,
        bytes: 1,
        reserved_bytes: 1,
        alignment: 256,
        device_ordinal: 0,
        alloc_stream,
        tag: AllocTag::UNTAGGED,
        generation,
        slot,
        state: BlockState::Live,
        part_depth: 0,
    };
    // SAFETY: the address is never used.
    unsafe { DeviceBlock::from_parts(parts) }.id()
}

fn insert(
    slots: &Slots,
    generation: Generation,
    allocation: UseId,
    occupant: Occupant,
) -> BlockSlot {
    let slot = slots.reserve(allocation.slot(), occupant).unwrap();
    slots.occupy(slot, generation, allocation).unwrap()
}

/// Opens a window.
fn open(slots: &Slots, used: BlockUse, stream: StreamId) -> UseTokens {
    let mut tokens = UseTokens::new(stream);
    slots.open(&[used], &mut tokens, |_| {}).unwrap();
    tokens
}

/// U13: another thread's later use of the same stream was submitted after the stream had been
/// waited for.
#[test]
fn a_use_that_is_done_does_not_remove_a_later_one_of_its_stream() {
    for access in [Access::Read, Access::Write] {
        let pool = StreamPoolId::next().unwrap();
        let [home, stream] = [0, 1].map(|slot| StreamId::from_parts(pool, slot, 0).unwrap());
        let slots = Slots::new(pool, 2);
        let generation = Generation::next();
        let allocation = UseId::new(home.slot(), 1);
        let block = id(insert(&slots, generation, allocation, Occupant::NONE), generation, home);
        let open = || open(&slots, BlockUse::new(block, access), stream);
        let done = open();
        let later = open();
        let close = |tokens: UseTokens, end| {
            slots.close(tokens.as_slice(), end, &|_| false);
        };
        close(later, WindowEnd::Used(UseId::new(stream.slot(), 4)));
        close(done, WindowEnd::Done(UseId::new(stream.slot(), 2)));
        let mut needs = Vec::new();
        slots.visit_host_waits(block, ByteRange::WHOLE, |need| needs.push(need.seq())).unwrap();
        assert!(needs.contains(&4), "{access:?}: {needs:?}");
    }
}

/// U6, U7: a token closes its own window and no other, in whatever order windows are opened and
/// closed.
#[test]
fn each_open_window_has_a_ticket_that_no_other_has() {
    let pool = StreamPoolId::next().unwrap();
    let home = StreamId::from_parts(pool, 0, 0).unwrap();
    let slots = Slots::new(pool, 1);
    let generation = Generation::next();
    let block = id(insert(&slots, generation, UseId::new(0, 1), Occupant::NONE), generation, home);
    let used = BlockUse::new(block, Access::Write);
    let mut windows: Vec<UseTokens> = Vec::new();
    for step in 0..200_usize {
        // Two are opened for each that is closed, for a while; then all are closed.
        if step % 3 < 2 && step < 100 {
            let opened = open(&slots, used, home);
            assert!(!windows.contains(&opened), "{opened:?} is open: {windows:?}");
            windows.push(opened);
        } else if !windows.is_empty() {
            let tokens = windows.swap_remove(step * 7 % windows.len());
            let closed = slots.close(tokens.as_slice(), WindowEnd::Unused, &|_| false);
            assert_eq!((closed.behind.len(), closed.windows), (0, 1));
        }
    }
    assert!(windows.is_empty() && !slots.has_open_window(block));
}

/// A number of slots that fill one row and a part of another.
const MANY: usize = ROW * CHUNK + 3 * CHUNK;

#[test]
fn no_block_has_more_slots_made_than_one_chunk() {
    let slots = Slots::new(StreamPoolId::next().unwrap(), 1);
    let mut made = 0;
    for _ in 0..10_000 {
        let _leaked = slots.reserve(0, Occupant::NONE).unwrap();
        let now: usize = slots.chunks().map(|chunk| chunk.len()).sum();
        assert!(now - made <= CHUNK, "{} slots at once", now - made);
        made = now;
    }
}

#[test]
fn every_block_has_a_slot_of_its_own_also_in_another_row() {
    let pool = StreamPoolId::next().unwrap();
    let slots = Slots::new(pool, 1);
    let home = StreamId::from_parts(pool, 0, 0).unwrap();
    let owner = OwnerNumber::new();
    let occupant = |payload| Occupant { owner: Some(owner), payload };
    let insert_at = |at: usize| {
        let generation = Generation::next();
        let slot = insert(&slots, generation, UseId::new(0, 1), occupant(at as u64));
        id(slot, generation, home)
    };
    let blocks: Vec<_> = (0..MANY).map(insert_at).collect();
    for (at, block) in blocks.iter().enumerate() {
        assert_eq!(slots.payload(*block, owner), Some(at as u64));
    }
}

#[test]
fn behind_the_last_ticket_the_lowest_free_one_is_next() {
    let pool = StreamPoolId::next().unwrap();
    let home = StreamId::from_parts(pool, 0, 0).unwrap();
    let slots = Slots::new(pool, 1);
    let generation = Generation::next();
    let allocation = UseId::new(home.slot(), 1);
    let block = id(insert(&slots, generation, allocation, Occupant::NONE), generation, home);
    let used = BlockUse::new(block, Access::Read);
    let open = || open(&slots, used, home).as_slice()[0].ticket();
    assert_eq!([open(), open()], [0, 1]);
    slots.of(block).unwrap().1.windows[1].ticket = dmr_core::UseToken::MAX_TICKET;
    assert_eq!([open(), open()], [1, 2]);
}

/// U6, U15: of tokens in a row, those of one block close its windows, each its own; a stale one
/// changes nothing.
#[test]
fn the_windows_of_parts_are_opened_and_closed_together() {
    let pool = StreamPoolId::next().unwrap();
    let [home, other] = [0, 1].map(|slot| StreamId::from_parts(pool, slot, 0).unwrap());
    let slots = Slots::new(pool, 2);
    let blocks = [0, 1].map(|_| {
        let generation = Generation::next();
        let slot = insert(&slots, generation, UseId::new(home.slot(), 1), Occupant::NONE);
        id(slot, generation, home)
    });
    let part = |block: usize, at: u64| {
        BlockUse::of_bytes(blocks[block], Access::Write, ByteRange::new(256 + 8 * at, 8))
    };
    let uses = [part(0, 0), part(0, 1), part(0, 2), part(1, 0), part(0, 3)];
    let mut tokens = UseTokens::new(home);
    let mut left: &[BlockUse] = &uses;
    let mut runs = Vec::new();
    while !left.is_empty() {
        let before = left.len();
        left = slots.open(left, &mut tokens, |_| {}).unwrap();
        runs.push(before - left.len());
    }
    assert_eq!(runs, [3, 1, 1]);
    assert_eq!(tokens.len(), uses.len());
    // Another stream conflicts with the third part of the first block, so none of these windows is
    // opened.
    let mut others = UseTokens::new(other);
    let conflicting = [part(0, 4), part(0, 5), part(0, 2)];
    let refused = slots.open(&conflicting, &mut others, |_| {});
    assert!(matches!(refused, Err(ResourceError::WindowConflict { .. })));
    assert!(others.is_empty());
    slots.open(&conflicting[..2], &mut others, |_| {}).unwrap();
    let end = WindowEnd::Used(UseId::new(home.slot(), 2));
    let first = slots.close(&tokens.as_slice()[1..], end, &|_| false);
    assert_eq!((first.behind.len(), first.windows, first.any_stale), (2, 2, false));
    let again = slots.close(tokens.as_slice(), end, &|_| false);
    assert_eq!((again.behind.len(), again.windows), (2, 1), "two are closed already");
    assert!(again.any_stale);
    let unused = slots.close(others.as_slice(), WindowEnd::Unused, &|_| false);
    assert_eq!((unused.behind.len(), unused.windows, unused.any_stale), (0, 2, false));
    assert!(slots.has_open_window(blocks[0]) && slots.has_open_window(blocks[1]));
    for at in [3, 4] {
        assert_eq!(slots.close(&tokens.as_slice()[at..], end, &|_| false).windows, 1);
    }
    assert!(!slots.has_open_window(blocks[0]) && !slots.has_open_window(blocks[1]));
}
