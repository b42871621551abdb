//! T4, U7: a free that panics takes no other block with it, and what is counted stays right.

#![allow(unsafe_code, reason = "makes blocks that no memory stands behind")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::no_memory::occupy;
use dmr_core::{Access, BlockId, BlockUse, ResourceResult, StreamId};
use dmr_streams::uses::{
    BlocksInUse, Dependencies, Patience, Pending, PendingAmount, PendingFrees, Released,
};
use dmr_streams::{BlockOwner, StreamPool};
use dmr_testkit::Rig;

/// Puts a block without memory into a new slot.
fn block_of(streams: &StreamPool, owner: &BlockOwner, home: StreamId) -> BlockId {
    occupy(streams, streams.uses().reserve(owner, 0, home).unwrap(), home)
}

#[test]
fn a_panic_of_a_free_leaves_the_other_closed_blocks_to_the_next_call() {
    let rig = Rig::simulated();
    let owner = &rig.streams().register();
    let uses = rig.streams().uses();
    let stream = rig.stream();
    let blocks = BlocksInUse::new(owner);
    for at in 0..3 {
        let block = block_of(rig.streams(), owner, stream.id());
        let tokens = uses.prepare(&[BlockUse::new(block, Access::Read)], stream.id()).unwrap();
        assert!(matches!(
            uses.release(owner, block, &mut Dependencies::default()),
            Released::InUse { .. }
        ));
        blocks.insert(block, at);
        uses.finish(tokens).unwrap();
    }
    let first =
        catch_unwind(AssertUnwindSafe(|| blocks.drain_closed(Patience::Poll, |_| panic!("free"))));
    assert!(first.is_err());
    let mut rest = Vec::new();
    blocks.drain_closed(Patience::Poll, |block| rest.push(block));
    assert_eq!(rest, [1, 2]);
    assert!(blocks.is_empty());
}

#[test]
fn a_panic_of_a_free_on_a_lost_device_leaves_the_other_blocks_to_the_next_call() {
    let rig = Rig::simulated();
    let owner = &rig.streams().register();
    let stream = rig.stream();
    let blocks = BlocksInUse::new(owner);
    for at in 0..3 {
        blocks.insert(block_of(rig.streams(), owner, stream.id()), at);
    }
    let first = catch_unwind(AssertUnwindSafe(|| blocks.drain_all(|_| panic!("free"))));
    assert!(first.is_err());
    let mut rest = Vec::new();
    blocks.drain_all(|block| rest.push(block));
    assert_eq!(rest.len(), 2);
    assert!(blocks.is_empty());
}

#[test]
fn a_block_whose_free_panics_is_not_counted_as_pending() {
    let rig = Rig::simulated();
    let stream = rig.stream().id();
    for oldest in [false, true] {
        let pending = PendingFrees::new(1, |bytes: &u64| *bytes);
        for bytes in [1, 2, 4] {
            pending.push(stream, Pending { value: bytes, after: Dependencies::default() });
        }
        let free = |_: &mut Pending<u64>| -> ResourceResult<bool> { panic!("free") };
        let panicked = catch_unwind(AssertUnwindSafe(|| match oldest {
            true => drop(pending.free_oldest(stream, 3, |_| true, free)),
            false => pending.reap(Patience::Wait, free).unwrap(),
        }));
        assert!(panicked.is_err());
        assert_eq!(pending.pending(stream), PendingAmount { blocks: 2, bytes: 6 });
        pending.reap(Patience::Wait, |_| Ok(false)).unwrap();
        assert_eq!(pending.pending(stream), PendingAmount { blocks: 2, bytes: 6 });
        pending.reap(Patience::Wait, |_| Ok(true)).unwrap();
        assert_eq!(pending.pending(stream), PendingAmount::default());
        assert!(pending.is_empty());
    }
}
