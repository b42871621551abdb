//! Tests of the slots without a stream pool.

use dmr_core::{
    AllocTag, BlockParts, BlockSlot, BlockState, DeviceBlock, Generation, StreamPoolId, UseTokens,
};

use super::*;

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
        let open = || {
            let ticket = slots.open(&BlockUse::new(block, access), stream, |_| {}).unwrap();
            let mut tokens = UseTokens::new(stream);
            // SAFETY: no memory stands behind the block.
            unsafe { tokens.push(block, access, ticket) };
            tokens
        };
        let (done, later) = (open(), open());
        slots
            .close(&later.as_slice()[0], WindowEnd::Used(UseId::new(stream.slot(), 4)), &|_| false);
        slots.close(&done.as_slice()[0], WindowEnd::Done(UseId::new(stream.slot(), 2)), &|_| false);
        let mut needs = Vec::new();
        slots.visit_host_waits(block, ByteRange::WHOLE, |need| needs.push(need.seq())).unwrap();
        assert!(needs.contains(&4), "{access:?}: {needs:?}");
    }
}

/// U6, U7: a token closes its own window and no other, in whatever order windows are opened and closed.
#[test]
fn each_open_window_has_a_ticket_that_no_other_has() {
    let pool = StreamPoolId::next().unwrap();
    let home = StreamId::from_parts(pool, 0, 0).unwrap();
    let (slots, generation) = (Slots::new(pool, 1), Generation::next());
    let block = id(insert(&slots, generation, UseId::new(0, 1), Occupant::NONE), generation, home);
    let used = BlockUse::new(block, Access::Write);
    let mut open: Vec<u32> = Vec::new();
    for step in 0..200_usize {
        // Two are opened for each that is closed, for a while; then all are closed.
        if step % 3 < 2 && step < 100 {
            let ticket = slots.open(&used, home, |_| {}).unwrap();
            assert!(!open.contains(&ticket), "{ticket} is open: {open:?}");
            open.push(ticket);
        } else if !open.is_empty() {
            let mut tokens = UseTokens::new(home);
            // SAFETY: no memory stands behind the block.
            unsafe { tokens.push(block, Access::Write, open.swap_remove(step * 7 % open.len())) };
            assert!(matches!(
                slots.close(&tokens.as_slice()[0], WindowEnd::Unused, &|_| false),
                Closed::Window
            ));
        }
    }
    assert!(open.is_empty() && !slots.has_open_window(block));
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
    let open = || slots.open(&used, home, |_| {}).unwrap();
    assert_eq!([open(), open()], [0, 1]);
    slots.of(block).unwrap().1.windows[1].ticket = dmr_core::UseToken::MAX_TICKET;
    assert_eq!([open(), open()], [1, 2]);
}
