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

/// Launches that end when their windows are closed, and not before.
struct Open;

impl Launches for Open {
    fn is_over(&self, _: UseId) -> bool {
        false
    }

    fn watch(&self, _: UseId) {}

    fn is_done(&self, _: UseId) -> bool {
        false
    }

    fn holds_up(&self, slot: usize, used: UseId) -> bool {
        slot != used.slot()
    }
}

/// Makes the tokens of a launch without windows.
fn launch(stream: StreamId, number: u64) -> UseTokens {
    let mut tokens = UseTokens::new(stream);
    // SAFETY: the windows of the launch are opened here.
    unsafe { tokens.set_launch(number) };
    tokens
}

/// Opens a window of a launch.
fn open(slots: &Slots, used: BlockUse, stream: StreamId, number: u64) -> UseTokens {
    let mut tokens = launch(stream, number);
    slots.open(&[used], &mut tokens, &Open, |_| {}).unwrap();
    tokens
}

/// Closes the windows of the first tokens that are of one block.
fn close<'t>(
    slots: &Slots,
    of_launch: &UseTokens,
    tokens: &'t [UseToken],
    end: WindowEnd,
) -> Closed<'t> {
    let launch = UseId::new(of_launch.stream().slot(), of_launch.launch());
    slots.close(tokens, launch, end, &Open)
}

/// U6, U7: a token closes a window of its own launch and no other, in whatever order windows are
/// opened and closed.
#[test]
fn each_launch_closes_its_own_windows() {
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
            windows.push(open(&slots, used, home, 2 + 2 * step as u64));
        } else if !windows.is_empty() {
            let tokens = windows.swap_remove(step * 7 % windows.len());
            let closed = close(&slots, &tokens, tokens.as_slice(), WindowEnd::Unused);
            assert_eq!((closed.behind.len(), closed.any_stale), (0, false));
            let again = close(&slots, &tokens, tokens.as_slice(), WindowEnd::Unused);
            assert!(again.any_stale);
        }
    }
    assert!(windows.is_empty() && !slots.has_open_window(block, &Open));
}

/// A number of slots that fill many chunks.
const MANY: usize = 515 * CHUNK;

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
fn every_block_has_a_slot_of_its_own_also_in_another_chunk() {
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
    let mut tokens = launch(home, 2);
    let mut left: &[BlockUse] = &uses;
    let mut runs = Vec::new();
    while !left.is_empty() {
        let before = left.len();
        left = slots.open(left, &mut tokens, &Open, |_| {}).unwrap();
        runs.push(before - left.len());
    }
    assert_eq!(runs, [3, 1, 1]);
    assert_eq!(tokens.len(), uses.len());
    // Another stream conflicts with the third part of the first block, so none of these windows is
    // opened.
    let mut others = launch(other, 2);
    let conflicting = [part(0, 4), part(0, 5), part(0, 2)];
    let refused = slots.open(&conflicting, &mut others, &Open, |_| {});
    assert!(matches!(refused, Err(ResourceError::WindowConflict { .. })));
    assert!(others.is_empty());
    slots.open(&conflicting[..2], &mut others, &Open, |_| {}).unwrap();
    let end = WindowEnd::Used(UseId::new(home.slot(), 2));
    let first = close(&slots, &tokens, &tokens.as_slice()[1..3], end);
    assert_eq!((first.behind.len(), first.any_stale), (0, false));
    let again = close(&slots, &tokens, tokens.as_slice(), end);
    assert_eq!((again.behind.len(), again.any_stale), (2, true), "two of the block are left");
    assert!(close(&slots, &tokens, &tokens.as_slice()[..1], end).any_stale);
    let unused = close(&slots, &others, others.as_slice(), WindowEnd::Unused);
    assert_eq!((unused.behind.len(), unused.any_stale), (0, false));
    assert!(!slots.has_open_window(blocks[0], &Open) && slots.has_open_window(blocks[1], &Open));
    assert!(!close(&slots, &tokens, &tokens.as_slice()[3..4], end).any_stale);
    assert!(!slots.has_open_window(blocks[1], &Open));
}
