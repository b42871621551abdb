//! U7, U12: the life of a use slot: which transitions it makes, and for which owner.

#![allow(unsafe_code, reason = "makes blocks that no memory stands behind")]

use crate::no_memory::occupy;
use dmr_core::{Access, BlockId, BlockUse, Generation, ResourceError, StreamId};
use dmr_streams::BlockOwner;
use dmr_streams::uses::{BlocksInUse, Dependencies, FreeSlot, Patience, Released, UseTable};
use dmr_testkit::Rig;

/// More than 32 bits.
const PAYLOAD: u64 = 7 << 40 | 1;

fn reserve(uses: UseTable<'_>, owner: &BlockOwner, home: StreamId) -> FreeSlot {
    uses.reserve(owner, PAYLOAD, home).unwrap()
}

fn release(uses: UseTable<'_>, owner: &BlockOwner, block: BlockId) -> Released {
    uses.release(owner, block, &mut Dependencies::default())
}

fn release_retired(uses: UseTable<'_>, owner: &BlockOwner, block: BlockId) -> Option<FreeSlot> {
    uses.release_retired(owner, block, &mut Dependencies::default())
}

fn expect_free(released: Released) -> FreeSlot {
    match released {
        Released::Free { slot, payload: PAYLOAD } => slot,
        other => panic!("{other:?}"),
    }
}

fn is_stale(released: Released) -> bool {
    matches!(released, Released::Stale)
}

fn is_foreign(released: Released) -> bool {
    matches!(released, Released::Foreign)
}

#[test]
fn a_block_that_was_released_in_a_window_leaves_its_slot_once_that_has_closed() {
    let rig = Rig::simulated();
    let owner = &rig.streams().register();
    let stream = rig.stream();
    let uses = rig.streams().uses();
    let block = occupy(rig.streams(), reserve(uses, owner, stream.id()), stream.id());
    let window = [BlockUse::new(block, Access::Read)];
    let tokens = uses.prepare(&window, stream.id()).unwrap();
    assert!(matches!(release(uses, owner, block), Released::InUse { payload: PAYLOAD, .. }));
    assert!(uses.is_retired(block));
    assert!(is_stale(release(uses, owner, block)), "the window is open");
    assert!(release_retired(uses, owner, block).is_none());
    uses.finish(tokens).unwrap();
    assert!(is_stale(release(uses, owner, block)), "the window is closed");
    assert!(uses.is_retired(block));
    let slot = release_retired(uses, owner, block).unwrap();
    assert!(!uses.is_retired(block));
    assert!(release_retired(uses, owner, block).is_none(), "it leaves once");
    assert!(is_foreign(release(uses, owner, block)), "it has left");
    uses.vacate(slot);
}

#[test]
fn a_live_block_does_not_leave_as_a_retired_one() {
    let rig = Rig::simulated();
    let owner = &rig.streams().register();
    let stream = rig.stream();
    let uses = rig.streams().uses();
    let block = occupy(rig.streams(), reserve(uses, owner, stream.id()), stream.id());
    assert!(release_retired(uses, owner, block).is_none());
    let window = [BlockUse::new(block, Access::Read)];
    uses.cancel(uses.prepare(&window, stream.id()).unwrap()).unwrap();
    let mut after = Dependencies::default();
    let slot = expect_free(uses.release(owner, block, &mut after));
    assert!(after.is_empty());
    uses.vacate(slot);
}

#[test]
fn the_id_of_a_block_is_not_enough_to_remove_it_from_its_slot() {
    let rig = Rig::simulated();
    let [home, user] = [rig.stream(), rig.stream()];
    let uses = rig.streams().uses();
    let owner = &rig.streams().register();
    let other = &rig.streams().register();
    let block = occupy(rig.streams(), reserve(uses, owner, home.id()), home.id());
    let window = [BlockUse::new(block, Access::Write)];
    uses.finish(uses.prepare(&window, user.id()).unwrap()).unwrap();
    assert!(is_foreign(release(uses, other, block)));
    assert!(release_retired(uses, other, block).is_none());
    assert_eq!(uses.payload(other, block), None);
    assert_eq!(uses.payload(owner, block), Some(PAYLOAD));
    assert_eq!(uses.recorded_uses(), 1, "the use is remembered");
    // A block of the same generation gets another slot.
    let home_guard = rig.streams().enter(home.id()).unwrap();
    let slot = uses.insert(other, block.generation(), &home_guard, PAYLOAD).unwrap();
    assert_ne!(slot, block.slot());
    let slot = expect_free(release(uses, owner, block));
    uses.defer(slot);
    assert!(release_retired(uses, other, block).is_none());
    assert!(uses.is_retired(block));
    assert_eq!(uses.payload(owner, block), None, "it is not live");
    uses.vacate(release_retired(uses, owner, block).unwrap());
}

#[test]
fn a_slot_is_for_blocks_of_its_own_table() {
    let rig = Rig::simulated();
    let other = Rig::simulated();
    let owner = &rig.streams().register();
    let [(uses, stream), (elsewhere, foreign)] =
        [&rig, &other].map(|rig| (rig.streams().uses(), rig.streams().default_stream()));
    let slot = reserve(uses, owner, stream);
    let home = other.streams().enter(foreign).unwrap();
    let slot = home.occupy(slot, Generation::next()).unwrap_err();
    assert!(uses.reserve(owner, PAYLOAD, foreign).is_err());
    assert!(elsewhere.reserve(owner, PAYLOAD, foreign).is_err(), "an owner of another pool");
    // It has come back whole.
    let block = occupy(rig.streams(), slot, stream);
    uses.vacate(expect_free(release(uses, owner, block)));
}

#[test]
fn a_slot_that_is_vacated_is_the_next_one_of_the_stream_that_it_was_reserved_for() {
    let rig = Rig::simulated();
    let owner = &rig.streams().register();
    let uses = rig.streams().uses();
    let [home, borrower] = [rig.stream(), rig.stream()];
    let block = occupy(rig.streams(), reserve(uses, owner, home.id()), borrower.id());
    uses.vacate(expect_free(release(uses, owner, block)));
    let next = occupy(rig.streams(), reserve(uses, owner, home.id()), home.id());
    assert_eq!(next.slot(), block.slot());
}

#[test]
fn a_block_whose_free_has_failed_is_live_again_with_all_its_uses() {
    let rig = Rig::simulated();
    let owner = &rig.streams().register();
    let uses = rig.streams().uses();
    let [home, user] = [rig.stream(), rig.stream()];
    let block = occupy(rig.streams(), reserve(uses, owner, home.id()), home.id());
    let window = [BlockUse::new(block, Access::Write)];
    rig.delay(user.id());
    uses.finish(uses.prepare(&window, user.id()).unwrap()).unwrap();
    for _ in 0..2 {
        let mut after = Dependencies::default();
        let slot = expect_free(uses.release(owner, block, &mut after));
        assert!(!uses.is_after(home.id(), &after), "what another stream does with it is left out");
        let gone = ResourceError::use_after_free(block.generation());
        assert_eq!(uses.prepare(&window, user.id()).unwrap_err(), gone);
        uses.restore(slot);
        assert!(!uses.is_retired(block));
        uses.cancel(uses.prepare(&window, user.id()).unwrap()).unwrap();
    }
    uses.vacate(expect_free(release(uses, owner, block)));
}

#[test]
fn a_block_that_is_deferred_is_retired_until_its_slot_is_taken() {
    let rig = Rig::simulated();
    let owner = &rig.streams().register();
    let uses = rig.streams().uses();
    let stream = rig.stream();
    let block = occupy(rig.streams(), reserve(uses, owner, stream.id()), stream.id());
    uses.defer(expect_free(release(uses, owner, block)));
    assert!(uses.is_retired(block));
    let window = [BlockUse::new(block, Access::Read)];
    let gone = ResourceError::use_after_free(block.generation());
    assert_eq!(uses.prepare(&window, stream.id()).unwrap_err(), gone);
    assert!(is_stale(release(uses, owner, block)));
    uses.vacate(release_retired(uses, owner, block).unwrap());
    assert!(!uses.is_retired(block));
}

/// A slot that was reserved for another owner does not bring the last owner's block back.
#[test]
fn a_slot_that_was_reserved_anew_restores_no_block() {
    let rig = Rig::simulated();
    let owner = &rig.streams().register();
    let other = &rig.streams().register();
    let uses = rig.streams().uses();
    let stream = rig.stream();
    let block = occupy(rig.streams(), reserve(uses, owner, stream.id()), stream.id());
    uses.vacate(expect_free(release(uses, owner, block)));
    let slot = reserve(uses, other, stream.id());
    uses.restore(slot);
    let window = [BlockUse::new(block, Access::Read)];
    let gone = ResourceError::use_after_free(block.generation());
    assert_eq!(uses.prepare(&window, stream.id()).unwrap_err(), gone);
}

#[test]
fn a_token_has_no_window_in_the_slots_next_block() {
    let rig = Rig::simulated();
    let owner = &rig.streams().register();
    let stream = rig.stream();
    let uses = rig.streams().uses();
    let first = occupy(rig.streams(), reserve(uses, owner, stream.id()), stream.id());
    let tokens = uses.prepare(&[BlockUse::new(first, Access::Write)], stream.id()).unwrap();
    assert!(matches!(release(uses, owner, first), Released::InUse { .. }));
    // Its windows have ended with the device.
    rig.universe().lose_device(0, 719);
    assert!(rig.device().synchronize().is_err());
    let slot = release_retired(uses, owner, first).unwrap();
    uses.vacate(slot);
    let gone = ResourceError::use_after_free(first.generation());
    assert_eq!(uses.cancel(tokens), Err(gone), "a token without a window");
    assert_eq!(uses.recorded_uses(), 0);
}

/// The values of blocks in use that `settle` has passed on.
fn settled(blocks: &BlocksInUse<&'static str>) -> Vec<&'static str> {
    let mut settled = Vec::new();
    blocks.drain_closed(Patience::Poll, |block| settled.push(block));
    settled
}

#[test]
fn a_closed_block_comes_to_its_owner_and_a_forgotten_window_costs_nothing() {
    let rig = Rig::simulated();
    let owner = &rig.streams().register();
    let other = &rig.streams().register();
    let uses = rig.streams().uses();
    let stream = rig.stream();
    let blocks = BlocksInUse::new(owner);
    let others = BlocksInUse::new(other);
    let [closed, cancelled, forgotten] = [(); 3].map(|()| {
        let block = occupy(rig.streams(), reserve(uses, owner, stream.id()), stream.id());
        let window = [BlockUse::new(block, Access::Read)];
        let tokens = [(); 2].map(|()| uses.prepare(&window, stream.id()).unwrap());
        assert!(matches!(release(uses, owner, block), Released::InUse { .. }));
        (block, tokens)
    });
    blocks.insert(closed.0, "closed");
    blocks.insert(forgotten.0, "forgotten");
    let [first, last] = closed.1;
    uses.finish(first).unwrap();
    assert!(!blocks.any_closed(), "another window is open");
    uses.finish(last).unwrap();
    cancelled.1.into_iter().for_each(|tokens| uses.cancel(tokens).unwrap());
    let [first, lost] = forgotten.1;
    uses.cancel(first).unwrap();
    std::mem::forget(lost);

    assert!(blocks.any_closed() && !others.any_closed());
    assert_eq!(settled(&blocks), ["closed"]);
    // The thread that has released the other one inserts it only now.
    assert_eq!(settled(&blocks), [""; 0]);
    blocks.insert(cancelled.0, "cancelled");
    assert_eq!(settled(&blocks), ["cancelled"]);
    assert!(!blocks.any_closed() && !blocks.is_empty());
    assert_eq!(settled(&others), [""; 0]);
    let mut all = Vec::new();
    blocks.drain_all(|block| all.push(block));
    assert_eq!(all, ["forgotten"]);
    assert!(blocks.is_empty());
}
