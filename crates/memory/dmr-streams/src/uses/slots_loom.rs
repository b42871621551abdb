//! Models of the slots: what holds in every order of the threads' steps.

use dmr_core::{
    Access, AllocTag, BlockParts, BlockSlot, BlockState, ByteRange, DeviceBlock, Generation,
    StreamPoolId, UseTokens,
};
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;

use super::*;
use crate::uses::slot_state::Occupant;
use crate::uses::{FreeSlot, Released};

fn stream(pool: StreamPoolId, slot: usize) -> StreamId {
    StreamId::from_parts(pool, slot, 0).unwrap()
}

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

/// Opens a window.
fn open(slots: &Slots, used: BlockUse, stream: StreamId) -> ResourceResult<UseTokens> {
    let mut tokens = UseTokens::new(stream);
    slots.open(&[used], &mut tokens, |_| {})?;
    Ok(tokens)
}

fn allocation(stream: StreamId) -> UseId {
    UseId::new(stream.slot(), 1)
}

/// Puts a new block of this owner into the slot.
fn occupy(slots: &Slots, slot: FreeSlot, home: StreamId) -> BlockId {
    let generation = Generation::next();
    id(slots.occupy(slot, generation, allocation(home)).unwrap(), generation, home)
}

fn insert(slots: &Slots, owner: OwnerNumber, home: StreamId) -> BlockId {
    let occupant = Occupant { owner: Some(owner), payload: 0 };
    occupy(slots, slots.reserve(home.slot(), occupant).unwrap(), home)
}

/// U6: two conflicting windows are never open at once, in whichever order they are opened.
#[test]
fn conflicting_windows_exclude_each_other() {
    loom::model(|| {
        let pool = StreamPoolId::next().unwrap();
        let slots = Arc::new(Slots::new(pool, 3));
        let block = insert(&slots, OwnerNumber::new(), stream(pool, 0));
        let inside = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = [1, 2]
            .map(|slot| {
                let slots = Arc::clone(&slots);
                let inside = Arc::clone(&inside);
                loom::thread::spawn(move || {
                    let me = stream(pool, slot);
                    let write = BlockUse::new(block, Access::Write);
                    let Ok(tokens) = open(&slots, write, me) else { return };
                    assert!(!inside.swap(true, Ordering::SeqCst), "two writers at once");
                    inside.store(false, Ordering::SeqCst);
                    let entry = UseId::new(me.slot(), 2);
                    slots.close(tokens.as_slice(), WindowEnd::Used(entry), &|_| false);
                })
            })
            .into();
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

/// U15: windows on disjoint parts of a block are open at once, and both uses are recorded, in
/// whichever order they are opened and closed.
#[test]
fn windows_on_disjoint_parts_do_not_exclude_each_other() {
    loom::model(|| {
        let pool = StreamPoolId::next().unwrap();
        let slots = Arc::new(Slots::new(pool, 3));
        let block = insert(&slots, OwnerNumber::new(), stream(pool, 0));
        let users: Vec<_> = [1, 2]
            .map(|slot| {
                let slots = Arc::clone(&slots);
                loom::thread::spawn(move || {
                    let me = stream(pool, slot);
                    let part = ByteRange::new(256 * slot as u64, 256);
                    let used = BlockUse::of_bytes(block, Access::Write, part);
                    let tokens = open(&slots, used, me).unwrap();
                    let entry = UseId::new(me.slot(), 2);
                    slots.close(tokens.as_slice(), WindowEnd::Used(entry), &|_| false);
                })
            })
            .into();
        for user in users {
            user.join().unwrap();
        }
        let mut needs = Vec::new();
        slots.visit_host_waits(block, ByteRange::WHOLE, |need| needs.push(need.slot())).unwrap();
        needs.sort_unstable();
        needs.dedup();
        assert_eq!(needs, [0, 1, 2]);
    });
}

/// Opens and closes a window of another stream on the block, unless it is refused; `is_gone`
/// returns whether the block has left its slot.
fn use_block(slots: &Slots, block: BlockId, stream: StreamId, is_gone: impl Fn() -> bool) {
    if let Ok(tokens) = open(slots, BlockUse::new(block, Access::Read), stream) {
        assert!(!is_gone(), "used after it left");
        slots.close(tokens.as_slice(), WindowEnd::Unused, &|_| false);
    }
}

/// U7, U12: a block that is being used does not leave its slot, and a stale id neither waits for
/// the free slot nor reaches its next block.
#[test]
fn a_block_leaves_only_while_no_window_is_open() {
    loom::model(|| {
        let pool = StreamPoolId::next().unwrap();
        let slots = Arc::new(Slots::new(pool, 2));
        let home = stream(pool, 0);
        let owner = OwnerNumber::new();
        let block = insert(&slots, owner, home);
        let gone = Arc::new(AtomicBool::new(false));
        let user = {
            let slots = Arc::clone(&slots);
            let gone = Arc::clone(&gone);
            let is_gone = move || gone.load(Ordering::SeqCst);
            loom::thread::spawn(move || use_block(&slots, block, stream(pool, 1), is_gone))
        };
        if let Released::Free { slot, .. } = slots.release(block, owner, |_| ()) {
            gone.store(true, Ordering::SeqCst);
            let next = occupy(&slots, slot, home);
            assert_eq!(next.slot(), block.slot());
            assert!(!slots.has_open_window(next));
        }
        user.join().unwrap();
    });
}

/// U12: a block whose free fails is live again, under the same id.
#[test]
fn a_block_that_is_restored_is_used_again() {
    loom::model(|| {
        let pool = StreamPoolId::next().unwrap();
        let slots = Arc::new(Slots::new(pool, 2));
        let home = stream(pool, 0);
        let owner = OwnerNumber::new();
        let block = insert(&slots, owner, home);
        let user = {
            let slots = Arc::clone(&slots);
            loom::thread::spawn(move || use_block(&slots, block, stream(pool, 1), || false))
        };
        let released = slots.release(block, owner, |_| ());
        if let Released::Free { slot, .. } = released {
            slots.reinsert(slot, false);
            user.join().unwrap();
            assert!(open(&slots, BlockUse::new(block, Access::Write), home).is_ok());
        } else {
            user.join().unwrap();
            assert!(slots.release_retired(block, owner, false, |_| ()).is_some());
        }
    });
}

/// U7: a block that is released in a window leaves its slot exactly once: the thread that closes
/// the last window finds that it is retired, or the release finds no window.
#[test]
fn the_last_window_of_a_retired_block_is_reported_once() {
    loom::model(|| {
        let pool = StreamPoolId::next().unwrap();
        let slots = Arc::new(Slots::new(pool, 2));
        let home = stream(pool, 0);
        let owner = OwnerNumber::new();
        let block = insert(&slots, owner, home);
        let me = stream(pool, 1);
        let tokens = open(&slots, BlockUse::new(block, Access::Read), me).unwrap();
        let closer = {
            let slots = Arc::clone(&slots);
            loom::thread::spawn(move || {
                slots.close(tokens.as_slice(), WindowEnd::Unused, &|_| false).retired.is_some()
            })
        };
        let left = matches!(slots.release(block, owner, |_| ()), Released::Free { .. });
        assert!(left != closer.join().unwrap());
    });
}
