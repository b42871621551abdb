//! U7, U12: slots that stay with an owner: whose block may be taken back, how often, and where a
//! slot may be put to use.

#![allow(unsafe_code, reason = "makes blocks that no memory stands behind")]

use dmr_core::{
    Access, AllocTag, BlockId, BlockParts, BlockState, BlockUse, DeviceBlock, Generation,
    ResourceError, StreamId,
};
use dmr_streams::uses::{Carried, Departure, Surrender, UseTable, Vacancy};
use dmr_streams::{BlockOwner, StreamPool};
use dmr_testkit::Rig;

/// More than 32 bits.
const INNER: u64 = 7 << 40 | 1;

/// A block without memory in the slot.
fn enter(streams: &StreamPool, vacancy: Vacancy, home: StreamId) -> BlockId {
    let (home, generation) = (streams.enter(home).unwrap(), Generation::next());
    let slot =
        streams.uses().enter(vacancy, generation, &home).map_err(|(_, error)| error).unwrap();
    let parts = BlockParts {
        ptr: 256,
        bytes: 1,
        reserved_bytes: 1,
        alignment: 256,
        device_ordinal: 0,
        alloc_stream: home.id(),
        tag: AllocTag::UNTAGGED,
        generation,
        slot,
        state: BlockState::Live,
        part_depth: 0,
    };
    // SAFETY: nothing is ever done with the address.
    unsafe { DeviceBlock::from_parts(parts) }.id()
}

fn reserve(uses: UseTable<'_>, owner: &BlockOwner, home: StreamId) -> Vacancy {
    uses.reserve(owner, INNER, home).unwrap()
}

fn is_before(answer: Surrender) -> bool {
    matches!(answer, Surrender::Before)
}

#[test]
fn a_block_that_was_given_back_in_a_window_is_not_taken_back_again() {
    let rig = Rig::simulated();
    let (owner, stream, uses) = (&rig.streams().register(), rig.stream(), rig.streams().uses());
    let block = enter(rig.streams(), reserve(uses, owner, stream.id()), stream.id());
    let window = [BlockUse::new(block, Access::Read)];
    let tokens = uses.prepare(&window, stream.id()).unwrap();
    assert!(matches!(
        uses.surrender(block, owner, &mut Carried::default()),
        Surrender::InUse(INNER)
    ));
    for _ in 0..2 {
        assert!(
            is_before(uses.surrender(block, owner, &mut Carried::default())),
            "the window is open"
        );
        assert!(matches!(uses.give_back(block, owner), Err(ResourceError::UseAfterFree { .. })));
        assert!(uses.surrender_retired(block, owner).is_none());
    }
    uses.finish(tokens).unwrap();
    assert!(
        is_before(uses.surrender(block, owner, &mut Carried::default())),
        "the window is closed"
    );
    assert!(matches!(uses.give_back(block, owner), Err(ResourceError::UseAfterFree { .. })));
    let vacancy = uses.surrender_retired(block, owner).unwrap();
    assert!(uses.surrender_retired(block, owner).is_none(), "taken once");
    assert!(
        matches!(uses.surrender(block, owner, &mut Carried::default()), Surrender::Foreign),
        "gone"
    );
    uses.give_up(vacancy);
}

#[test]
fn a_block_that_was_not_given_back_does_not_leave_as_a_retired_one() {
    let rig = Rig::simulated();
    let (owner, stream, uses) = (&rig.streams().register(), rig.stream(), rig.streams().uses());
    let block = enter(rig.streams(), reserve(uses, owner, stream.id()), stream.id());
    assert!(uses.surrender_retired(block, owner).is_none());
    let window = [BlockUse::new(block, Access::Read)];
    uses.cancel(uses.prepare(&window, stream.id()).unwrap()).unwrap();
    let mut after = Carried::default();
    let Surrender::Free { payload, vacancy } = uses.surrender(block, owner, &mut after) else {
        panic!("it is there, and nobody uses it");
    };
    assert_eq!((payload, after.is_empty()), (INNER, true));
    uses.give_up(vacancy);
}

#[test]
fn a_block_is_its_owners_and_nobody_elses() {
    let rig = Rig::simulated();
    let (owner, other, stream) =
        (&rig.streams().register(), &rig.streams().register(), rig.stream());
    let uses = rig.streams().uses();
    let block = enter(rig.streams(), reserve(uses, owner, stream.id()), stream.id());
    assert!(matches!(uses.surrender(block, other, &mut Carried::default()), Surrender::Foreign));
    assert!(matches!(uses.give_back(block, other), Ok(Departure::Foreign)));
    assert_eq!(uses.payload(block, other), None);
    assert_eq!(uses.payload(block, owner), Some(INNER));
    let Surrender::Free { vacancy, .. } = uses.surrender(block, owner, &mut Carried::default())
    else {
        panic!("it is the owner's");
    };
    assert_eq!(uses.payload(block, owner), None);
    uses.give_up(vacancy);
}

#[test]
fn a_slot_is_for_blocks_of_its_own_table() {
    let (rig, other) = (Rig::simulated(), Rig::simulated());
    let owner = &rig.streams().register();
    let [(uses, stream), (elsewhere, foreign)] =
        [&rig, &other].map(|rig| (rig.streams().uses(), rig.streams().default_stream()));
    let refused = |answer| match answer {
        Err((vacancy, ResourceError::StreamMisuse { .. })) => vacancy,
        answer => panic!("{answer:?}"),
    };
    let vacancy = reserve(uses, owner, stream);
    // Into another table, and into its own for a stream of another.
    let home = other.streams().enter(foreign).unwrap();
    let vacancy = refused(elsewhere.enter(vacancy, Generation::next(), &home));
    let vacancy = refused(uses.enter(vacancy, Generation::next(), &home));
    assert!(uses.reserve(owner, INNER, foreign).is_err());
    assert!(elsewhere.reserve(owner, INNER, foreign).is_err(), "an owner of another pool");
    // It has come back whole.
    let block = enter(rig.streams(), vacancy, stream);
    assert!(matches!(
        uses.surrender(block, owner, &mut Carried::default()),
        Surrender::Free { .. }
    ));
}

#[test]
fn a_slot_that_is_given_up_is_the_next_one_of_the_stream_that_it_was_reserved_for() {
    let rig = Rig::simulated();
    let (owner, uses) = (&rig.streams().register(), rig.streams().uses());
    let [home, borrower] = [rig.stream(), rig.stream()];
    let block = enter(rig.streams(), reserve(uses, owner, home.id()), borrower.id());
    let Surrender::Free { vacancy, .. } = uses.surrender(block, owner, &mut Carried::default())
    else {
        panic!("nobody uses it");
    };
    uses.give_up(vacancy);
    let next = enter(rig.streams(), reserve(uses, owner, home.id()), home.id());
    assert_eq!(next.slot(), block.slot());
}

#[test]
fn a_retired_block_is_not_retired_again_until_it_was_unretired() {
    let rig = Rig::simulated();
    let (owner, stream, uses) = (&rig.streams().register(), rig.stream(), rig.streams().uses());
    let block = enter(rig.streams(), reserve(uses, owner, stream.id()), stream.id());
    let gone = ResourceError::use_after_free(block.generation());
    let window = [BlockUse::new(block, Access::Read)];
    uses.retire(owner, block).unwrap();
    assert_eq!(uses.retire(owner, block), Err(gone.clone()));
    assert_eq!(uses.prepare(&window, stream.id()).unwrap_err(), gone);
    uses.unretire(owner, block);
    uses.cancel(uses.prepare(&window, stream.id()).unwrap()).unwrap();
    uses.remove(owner, block);
}

#[test]
fn a_block_that_was_removed_is_gone_and_its_slot_is_taken_once() {
    let rig = Rig::simulated();
    let (owner, stream, uses) = (&rig.streams().register(), rig.stream(), rig.streams().uses());
    let enter = || enter(rig.streams(), reserve(uses, owner, stream.id()), stream.id());
    let removed = enter();
    let tokens = uses.prepare(&[BlockUse::new(removed, Access::Write)], stream.id()).unwrap();
    uses.remove(owner, removed);
    uses.remove(owner, removed);
    let gone = ResourceError::use_after_free(removed.generation());
    assert_eq!(uses.retire(owner, removed), Err(gone));
    let next = [enter(), enter()];
    assert_eq!(next[0].slot(), removed.slot(), "the same slot");
    assert_ne!(next[1].slot(), removed.slot());
    assert!(!uses.has_open_window(next[0]), "the window was the last block's");
    let gone = ResourceError::use_after_free(removed.generation());
    assert_eq!(uses.finish(tokens), Err(gone), "a token without a window");
    assert_eq!(uses.recorded_uses(), 0, "nothing was recorded of the next block");
}

/// The id of a block is enough to use it, and not enough to make the table forget what it remembers.
#[test]
fn another_owner_neither_retires_a_block_nor_takes_it_out() {
    let rig = Rig::simulated();
    let [home, user] = [rig.stream(), rig.stream()];
    let uses = rig.streams().uses();
    let (owner, other) = (&rig.streams().register(), &rig.streams().register());
    let block = enter(rig.streams(), reserve(uses, owner, home.id()), home.id());
    let window = [BlockUse::new(block, Access::Write)];
    uses.finish(uses.prepare(&window, user.id()).unwrap()).unwrap();
    assert!(uses.retire(other, block).is_err());
    uses.remove(other, block);
    assert!(uses.surrender_retired(block, other).is_none());
    assert_eq!(uses.recorded_uses(), 1, "the use is remembered");
    // A block of the same generation gets another slot.
    let home_guard = rig.streams().enter(home.id()).unwrap();
    let slot = uses.insert(other, block.generation(), &home_guard, INNER).unwrap();
    assert_ne!(slot, block.slot());
    uses.retire(owner, block).unwrap();
    uses.unretire(other, block);
    assert!(uses.is_retired(block));
}
