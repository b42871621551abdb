//! Models of the slots: what holds in every order of the threads' steps.

use dmr_core::{AllocTag, BlockParts, BlockSlot, BlockState, DeviceBlock, StreamPoolId};
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;

use super::*;

fn stream(pool: StreamPoolId, slot: usize) -> StreamId {
    StreamId::from_parts(pool, slot, 0).unwrap()
}

fn id(slot: u32, generation: Generation, alloc_stream: StreamId) -> BlockId {
    let parts = BlockParts {
        ptr: 256,
        bytes: 1,
        reserved_bytes: 1,
        alignment: 256,
        device_ordinal: 0,
        alloc_stream,
        tag: AllocTag::UNTAGGED,
        generation,
        slot: BlockSlot::new(slot),
        state: BlockState::Live,
        part_depth: 0,
    };
    // SAFETY: nothing is ever done with the address.
    unsafe { DeviceBlock::from_parts(parts) }.id()
}

fn token(block: BlockId, stream: StreamId, access: Access, ticket: u64) -> UseToken {
    // SAFETY: no memory stands behind the block.
    unsafe { UseToken::new(block, stream, access, ticket) }
}

fn allocation(stream: StreamId) -> UseId {
    UseId::new(stream.slot(), 1)
}

/// U6: two conflicting windows are never open at once, whoever comes first.
#[test]
fn conflicting_windows_exclude_each_other() {
    loom::model(|| {
        let pool = StreamPoolId::next().unwrap();
        let slots = Arc::new(Slots::new(3));
        let (home, generation) = (stream(pool, 0), Generation::next());
        let block = id(
            slots.insert(generation, allocation(home), Tenancy::NONE).unwrap(),
            generation,
            home,
        );
        let inside = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = [1, 2]
            .map(|slot| {
                let (slots, inside) = (Arc::clone(&slots), Arc::clone(&inside));
                loom::thread::spawn(move || {
                    let me = stream(pool, slot);
                    let Ok(ticket) = slots.open(block, me, Access::Write, |_| {}) else {
                        return;
                    };
                    assert!(!inside.swap(true, Ordering::SeqCst), "two writers at once");
                    inside.store(false, Ordering::SeqCst);
                    let token = self::token(block, me, Access::Write, ticket);
                    let entry = UseId::new(me.slot(), 2);
                    slots.close(&token, Closing::Used(entry));
                })
            })
            .into();
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

/// U7, U12: a block that is being used does not leave its slot, and one that has left is not
/// used; if its free fails, it is there again.
#[test]
fn a_block_leaves_only_while_nobody_uses_it() {
    loom::model(|| {
        let pool = StreamPoolId::next().unwrap();
        let slots = Arc::new(Slots::new(2));
        let (home, generation, owner) = (stream(pool, 0), Generation::next(), OwnerNumber::new());
        let tenancy = Tenancy { owner: Some(owner), payload: 0 };
        let insert = |generation| {
            let slot = slots.insert(generation, allocation(home), tenancy).unwrap();
            id(slot, generation, home)
        };
        let block = insert(generation);
        let gone = Arc::new(AtomicBool::new(false));
        let user = {
            let (slots, gone) = (Arc::clone(&slots), Arc::clone(&gone));
            loom::thread::spawn(move || {
                let me = stream(pool, 1);
                if let Ok(ticket) = slots.open(block, me, Access::Read, |_| {}) {
                    assert!(!gone.load(Ordering::SeqCst), "used after it left");
                    let token = self::token(block, me, Access::Read, ticket);
                    slots.close(&token, Closing::Unused);
                }
            })
        };
        if let Left::Gone { empty, .. } = slots.give_back(block, owner, true, |_| true) {
            gone.store(true, Ordering::SeqCst);
            // SAFETY: the slot is of this table.
            unsafe { slots.give_up(empty) };
            let next = insert(Generation::next());
            assert_eq!(next.slot(), block.slot(), "the slot is free");
            assert!(!slots.has_open_window(next));
        }
        user.join().unwrap();
    });
}

/// U7, U12: while one thread gives a block back and another block takes its slot, a third
/// thread's old id opens a window on the old block or on none.
#[test]
fn a_stale_id_never_opens_a_window_on_the_slots_next_block() {
    loom::model(|| {
        let pool = StreamPoolId::next().unwrap();
        let slots = Arc::new(Slots::new(2));
        let (home, generation, owner) = (stream(pool, 0), Generation::next(), OwnerNumber::new());
        let tenancy = Tenancy { owner: Some(owner), payload: 0 };
        let block =
            id(slots.insert(generation, allocation(home), tenancy).unwrap(), generation, home);
        let user = {
            let slots = Arc::clone(&slots);
            loom::thread::spawn(move || {
                let me = stream(pool, 1);
                if let Ok(ticket) = slots.open(block, me, Access::Read, |_| {}) {
                    slots.close(&token(block, me, Access::Read, ticket), Closing::Unused);
                }
            })
        };
        slots.retire(block, owner).unwrap();
        if slots.free_waits(block, |_| {}).unwrap() {
            slots.remove(block, owner);
            let next = Generation::next();
            let next = id(slots.insert(next, allocation(home), tenancy).unwrap(), next, home);
            assert!(!slots.has_open_window(next));
        }
        user.join().unwrap();
    });
}

/// U7, U12: the same where the slot stays with its owner, latched while it is empty: an old id
/// neither waits for it nor comes to the next block.
#[test]
fn a_stale_id_finds_nothing_in_a_slot_that_its_owner_keeps() {
    loom::model(|| {
        let pool = StreamPoolId::next().unwrap();
        let slots = Arc::new(Slots::new(2));
        let (home, generation, owner) = (stream(pool, 0), Generation::next(), OwnerNumber::new());
        let tenancy = Tenancy { owner: Some(owner), payload: 0 };
        let empty = slots.reserve(0, tenancy).unwrap();
        // SAFETY: the slot is of this table.
        let fill =
            |empty, next| id(unsafe { slots.fill(empty, next, allocation(home)) }, next, home);
        let block = fill(empty, generation);
        let gone = Arc::new(AtomicBool::new(false));
        let user = {
            let (slots, gone) = (Arc::clone(&slots), Arc::clone(&gone));
            loom::thread::spawn(move || {
                let me = stream(pool, 1);
                if let Ok(ticket) = slots.open(block, me, Access::Read, |_| {}) {
                    assert!(!gone.load(Ordering::SeqCst), "used after it left");
                    slots.close(&token(block, me, Access::Read, ticket), Closing::Unused);
                }
            })
        };
        if let Yielded::Gone { empty, .. } = slots.surrender(block, owner, |_| ()) {
            gone.store(true, Ordering::SeqCst);
            let next = fill(empty, Generation::next());
            assert_eq!(next.slot(), block.slot(), "the slot is the owner's");
            assert!(!slots.has_open_window(next));
        }
        user.join().unwrap();
    });
}
