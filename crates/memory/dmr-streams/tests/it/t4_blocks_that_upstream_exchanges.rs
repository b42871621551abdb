//! T4: a refusal of upstream with another block in it makes no second block of the memory that
//! upstream has kept, and loses no block: the other one is in the error.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, ResourceError, UseTokens,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_testkit::{Exchanging, Rig};

const BYTES: usize = 1000;
const TAG: AllocTag = AllocTag::UNTAGGED;

fn tracked(rig: &Rig) -> Tracked<Exchanging<DirectCudaResource>> {
    let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
    Tracked::new(Exchanging::new(direct), Arc::clone(rig.streams())).unwrap()
}

fn assert_names(error: &ResourceError, blocks: [u64; 2]) {
    assert!(matches!(error, ResourceError::WrongMemory { .. }), "{error}");
    let message = error.to_string();
    for block in blocks {
        assert!(message.contains(&format!("block #{block} ")), "{message}: not block {block}");
    }
}

fn number(block: &DeviceBlock) -> u64 {
    block.generation().get()
}

#[test]
fn a_block_that_upstream_keeps_is_not_returned_to_its_caller() {
    let rig = Rig::new();
    let tracked = tracked(&rig);
    let stream = rig.stream();
    let upstream = tracked.upstream();
    let other = upstream.allocate(BYTES, stream.id(), TAG).unwrap();
    let block = tracked.allocate(BYTES, stream.id(), TAG).unwrap();
    let id = block.id();
    let numbers = [number(&block), number(&other)];
    upstream.refuse_with(other);
    let refused = tracked.deallocate(block).unwrap_err();
    assert_names(&refused.error, numbers);
    assert_eq!(number(&refused.block), numbers[1]);
    let mut tokens = UseTokens::new(stream.id());
    let uses = [BlockUse::new(id, Access::Read)];
    let stale = tracked.use_tracking().unwrap().prepare(&uses, &mut tokens).unwrap_err();
    assert!(matches!(stale, ResourceError::UseAfterFree { .. }), "{stale}");
    let kept = upstream.take_kept();
    assert_eq!((kept.len(), number(&kept[0])), (1, numbers[0]));
    for block in kept.into_iter().chain([refused.block]) {
        upstream.deallocate(block).unwrap();
    }
    tracked.reap_pending().unwrap();
    assert_eq!(tracked.usage().outstanding(), 0);
}

#[test]
fn a_retired_block_that_upstream_keeps_is_not_passed_to_it_again() {
    let rig = Rig::new();
    let tracked = tracked(&rig);
    let stream = rig.stream();
    let upstream = tracked.upstream();
    let other = upstream.allocate(BYTES, stream.id(), TAG).unwrap();
    let block = tracked.allocate(BYTES, stream.id(), TAG).unwrap();
    let id = block.id();
    let numbers = [number(&block), number(&other)];
    let mut tokens = UseTokens::new(stream.id());
    tracked
        .use_tracking()
        .unwrap()
        .prepare(&[BlockUse::new(id, Access::Read)], &mut tokens)
        .unwrap();
    // In an open window, so it is retired.
    tracked.deallocate(block).unwrap();
    upstream.refuse_with(other);
    tracked.use_tracking().unwrap().finish(&mut tokens).unwrap();
    for _ in 0..3 {
        assert_names(&tracked.reap_pending().unwrap_err(), numbers);
        assert_eq!(upstream.deallocations(), 1);
        assert!(tracked.is_retired(id) && tracked.usage().retired >= BYTES as u64);
    }
    let kept = upstream.take_kept();
    assert_eq!((kept.len(), number(&kept[0])), (1, numbers[0]));
    // The pool of streams is dropped with a block in it, whose memory is the test's.
    drop(tracked);
}

/// U8: the uses on the stream that was asked for would count as ordered before a free on another
/// one.
#[test]
fn a_block_of_another_home_stream_or_size_is_refused_and_deallocated() {
    let rig = Rig::new();
    let tracked = tracked(&rig);
    let [home, away] = [rig.stream(), rig.stream()];
    let upstream = tracked.upstream();
    for (bytes, stream) in [(BYTES, &away), (BYTES - 1, &home), (BYTES + 1, &home)] {
        upstream.allocate_instead(upstream.upstream().allocate(bytes, stream.id(), TAG).unwrap());
        let refused = tracked.allocate(BYTES, home.id(), TAG).unwrap_err();
        assert!(matches!(refused, ResourceError::WrongMemory { .. }), "{refused}");
    }
    tracked.reap_pending().unwrap();
    assert_eq!((upstream.deallocations(), tracked.usage().outstanding()), (3, 0));
}
