//! U1, U4, U6, U7, U15: launches of one stream that end in any order, and blocks that nothing looks
//! at between a launch's end and their next use.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockState, BlockUse, ByteRange, DeviceBlock, DeviceMemoryResource,
    ResourceError, StreamId, UseTokens, UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::{StreamLease, Tracked};
use dmr_testkit::Rig;

const BYTES: usize = 4096;

struct Stage {
    rig: Rig,
    resource: Tracked<DirectCudaResource>,
    /// The home stream of the blocks.
    home: StreamLease,
    one: StreamLease,
    other: StreamLease,
}

impl Stage {
    fn new() -> Self {
        let rig = Rig::new();
        let streams = Arc::clone(rig.streams());
        let resource =
            Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap();
        let [home, one, other] = [rig.stream(), rig.stream(), rig.stream()];
        Self { rig, resource, home, one, other }
    }

    fn block(&self) -> DeviceBlock {
        self.resource.allocate(BYTES, self.home.id(), AllocTag::UNTAGGED).unwrap()
    }

    fn prepare(&self, block: &DeviceBlock, stream: &StreamLease, access: Access) -> UseTokens {
        self.resource.prepare_block_use(block.id(), stream.id(), access).unwrap()
    }

    fn finish(&self, tokens: UseTokens) {
        self.resource.finish_uses(tokens).unwrap();
    }

    fn launch(&self, block: &DeviceBlock, stream: &StreamLease, access: Access) {
        self.finish(self.prepare(block, stream, access));
    }

    fn is_open(&self, block: &DeviceBlock) -> bool {
        self.rig.streams().uses().has_open_window(block.id())
    }

    /// Returns the stream that keeps `stream` from writing the block.
    fn holder(&self, block: &DeviceBlock, stream: &StreamLease) -> StreamId {
        let refused = self.resource.prepare_block_use(block.id(), stream.id(), Access::Write);
        match refused.unwrap_err() {
            ResourceError::WindowConflict { holder, .. } => holder,
            other => panic!("{other}"),
        }
    }

    fn end(self, blocks: Vec<DeviceBlock>) {
        for block in blocks {
            self.resource.deallocate(block).unwrap();
        }
        self.resource.reap_pending().unwrap();
        assert_eq!(self.resource.usage().outstanding(), 0);
        let Self { rig, resource, home, one, other } = self;
        drop((resource, home, one, other));
        rig.assert_clean();
    }
}

#[test]
fn a_launch_that_another_one_overtakes_is_open_until_it_ends_itself() {
    let stage = Stage::new();
    let blocks = [stage.block(), stage.block()];
    let early = stage.prepare(&blocks[0], &stage.one, Access::Write);
    stage.launch(&blocks[1], &stage.one, Access::Write);
    assert!(stage.is_open(&blocks[0]), "its work was not submitted");
    assert!(!stage.is_open(&blocks[1]));
    assert_eq!(stage.holder(&blocks[0], &stage.other), stage.one.id());
    stage.launch(&blocks[1], &stage.other, Access::Write);
    stage.finish(early);
    stage.launch(&blocks[0], &stage.other, Access::Write);
    stage.end(blocks.into());
}

#[test]
fn an_event_that_another_stream_waits_for_does_not_end_an_open_launch() {
    let stage = Stage::new();
    let first = stage.block();
    let open = stage.prepare(&first, &stage.home, Access::Write);
    // No event covers this allocation yet: one is recorded for the other stream.
    let second = stage.block();
    stage.launch(&second, &stage.other, Access::Read);
    assert!(stage.is_open(&first));
    assert_eq!(stage.holder(&first, &stage.other), stage.home.id());
    stage.finish(open);
    stage.launch(&first, &stage.other, Access::Write);
    stage.end(vec![first, second]);
}

#[test]
fn launches_of_a_stream_that_end_in_reverse_are_all_waited_for() {
    let stage = Stage::new();
    let blocks: Vec<_> = (0..8).map(|_| stage.block()).collect();
    let prepare = |block| stage.prepare(block, &stage.one, Access::Write);
    let mut open: Vec<_> = blocks.iter().map(prepare).collect();
    while let Some(last) = open.pop() {
        stage.finish(last);
        let are_open: Vec<_> = blocks.iter().map(|block| stage.is_open(block)).collect();
        let expected: Vec<_> = (0..blocks.len()).map(|at| at < open.len()).collect();
        assert_eq!(are_open, expected);
    }
    let uses = stage.rig.streams().uses();
    assert_eq!(uses.recorded_uses(), blocks.len());
    for block in &blocks {
        stage.launch(block, &stage.other, Access::Write);
    }
    stage.end(blocks);
}

#[test]
fn a_launch_that_is_cancelled_between_two_others_leaves_no_use() {
    let stage = Stage::new();
    let blocks = [stage.block(), stage.block(), stage.block()];
    let [first, second, third] =
        [0, 1, 2].map(|at| stage.prepare(&blocks[at], &stage.one, Access::Write));
    stage.resource.cancel_uses(second).unwrap();
    assert!(!stage.is_open(&blocks[1]));
    stage.finish(third);
    assert!(stage.is_open(&blocks[0]));
    stage.finish(first);
    assert_eq!(stage.rig.streams().uses().recorded_uses(), 2);
    stage.launch(&blocks[1], &stage.one, Access::Read);
    stage.end(blocks.into());
}

#[test]
fn the_holder_of_a_conflict_is_a_stream_whose_launch_has_not_ended() {
    let stage = Stage::new();
    let block = stage.block();
    let first = stage.prepare(&block, &stage.one, Access::Read);
    let second = stage.prepare(&block, &stage.other, Access::Read);
    stage.finish(first);
    // Nothing has looked at the block since the first reader has finished.
    assert_eq!(stage.holder(&block, &stage.home), stage.other.id());
    stage.finish(second);
    stage.launch(&block, &stage.home, Access::Write);
    stage.end(vec![block]);
}

#[test]
fn a_block_whose_launch_has_ended_is_not_retired_when_it_is_deallocated() {
    let stage = Stage::new();
    let block = stage.block();
    stage.launch(&block, &stage.home, Access::Write);
    assert_ne!(stage.resource.deallocate(block).unwrap(), BlockState::Live);
    let block = stage.block();
    let id = block.id();
    stage.launch(&block, &stage.one, Access::Write);
    stage.resource.deallocate(block).unwrap();
    assert!(!stage.rig.streams().uses().has_open_window(id));
    stage.end(Vec::new());
}

#[test]
fn a_block_that_is_deallocated_in_windows_is_reaped_once_the_last_launch_has_ended() {
    for first_ends_first in [true, false] {
        let stage = Stage::new();
        let block = stage.block();
        let between = stage.block();
        let mut open = vec![stage.prepare(&block, &stage.one, Access::Read)];
        open.push(stage.prepare(&block, &stage.other, Access::Read));
        stage.resource.deallocate(block).unwrap();
        // The first of them is overtaken.
        stage.launch(&between, &stage.one, Access::Read);
        if first_ends_first {
            open.reverse();
        }
        while let Some(tokens) = open.pop() {
            assert_eq!(stage.resource.reap_pending().unwrap(), 0, "a window is open");
            assert_eq!(stage.resource.usage().retired, BYTES as u64);
            stage.finish(tokens);
        }
        stage.resource.reap_pending().unwrap();
        assert_eq!(stage.resource.usage().retired, 0);
        stage.end(vec![between]);
    }
}

#[test]
fn a_launch_that_is_dropped_holds_up_no_other_one_of_its_stream() {
    let stage = Stage::new();
    let leaked = stage.block();
    #[allow(
        clippy::forget_non_drop,
        reason = "a token without `Drop` is forgotten by dropping it, too"
    )]
    std::mem::forget(stage.prepare(&leaked, &stage.one, Access::Write));
    for _ in 0..100 {
        let block = stage.block();
        stage.launch(&block, &stage.one, Access::Write);
        assert!(!stage.is_open(&block));
        stage.launch(&block, &stage.other, Access::Write);
        stage.resource.deallocate(block).unwrap();
    }
    assert!(stage.is_open(&leaked));
    stage.resource.deallocate(leaked).unwrap();
    stage.resource.reap_pending().unwrap();
    assert_eq!(stage.resource.usage().retired, BYTES as u64, "leaked, visibly");
    let Stage { rig, resource, .. } = stage;
    drop(resource);
    assert_eq!(rig.verdict(), Ok(()));
}

#[test]
fn uses_of_parts_and_of_the_whole_are_settled_in_their_order() {
    let stage = Stage::new();
    let block = stage.block();
    let half = BYTES as u64 / 2;
    let part = |at| ByteRange::new(block.ptr() + at * half, half as usize);
    let launch_part = |stream: &StreamLease, at, access| {
        let used = BlockUse::of_bytes(block.id(), access, part(at));
        stage.finish(stage.resource.prepare_uses(&[used], stream.id()).unwrap());
    };
    stage.launch(&block, &stage.one, Access::Write);
    launch_part(&stage.one, 0, Access::Write);
    launch_part(&stage.other, 1, Access::Write);
    let uses = stage.rig.streams().uses();
    let of_part = |at| uses.recorded_uses_of(block.id(), part(at)).unwrap();
    assert!(of_part(0).is_some() && of_part(1).is_some(), "no window is open");
    stage.launch(&block, &stage.home, Access::Write);
    assert_eq!(uses.recorded_uses(), 1, "the write of the whole comes after all others");
    stage.end(vec![block]);
}

#[test]
fn threads_that_share_a_stream_end_their_launches_in_any_order() {
    const THREADS: usize = 4;
    let stage = Stage::new();
    let shared = stage.block();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let stage = &stage;
            let shared = &shared;
            scope.spawn(move || {
                for step in 0..200 {
                    let own = stage.block();
                    let reads = stage.prepare(shared, &stage.one, Access::Read);
                    let writes = stage.prepare(&own, &stage.one, Access::Write);
                    assert!(stage.is_open(&own));
                    let pair =
                        if (thread + step) % 2 == 0 { [reads, writes] } else { [writes, reads] };
                    pair.into_iter().for_each(|tokens| stage.finish(tokens));
                    assert!(!stage.is_open(&own));
                    stage.launch(&own, &stage.other, Access::Write);
                    stage.resource.deallocate(own).unwrap();
                }
            });
        }
    });
    stage.launch(&shared, &stage.other, Access::Write);
    stage.end(vec![shared]);
}
