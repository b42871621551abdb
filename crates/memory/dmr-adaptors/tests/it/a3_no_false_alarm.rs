//! A3: a program that does nothing wrong is never accused.

#![cfg(feature = "debug-guard")]

use crate::a3;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::a3::{BOTH, Backend, Guard, TAG, TRACKING};
use dmr_adaptors::guard::GuardChecks;
use dmr_core::{
    Access, BlockUse, DeallocateError, DeviceBlock, DeviceMemoryResource, DeviceOps, StreamId,
    UseTrackingExt,
};
use dmr_testkit::Rig;

const STREAMS: usize = 4;

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}

/// A thread with a home stream of its own, which uses the others' as well.
struct Program<'a> {
    rig: &'a Rig,
    guard: &'a Guard,
    streams: [StreamId; STREAMS],
    home: StreamId,
    numbers: Numbers,
    held: Vec<DeviceBlock>,
}

impl Program<'_> {
    fn run(mut self, operations: usize) {
        for _ in 0..operations {
            match self.numbers.below(16) {
                0..=5 if self.held.len() < 24 => self.allocate(),
                6..=8 if !self.held.is_empty() => self.use_one(),
                9 if !self.held.is_empty() => self.deallocate_inside_a_window(),
                10 if self.numbers.below(64) == 0 => self.reap(),
                _ if !self.held.is_empty() => {
                    let block = self.pick();
                    deallocate(self.guard, block);
                }
                _ => self.allocate(),
            }
        }
        self.held.into_iter().for_each(|block| deallocate(self.guard, block));
    }

    fn allocate(&mut self) {
        let bytes = 1 + self.numbers.below(3000);
        let block = self.guard.allocate(bytes, self.home, TAG).unwrap();
        self.overwrite(&block, self.home);
        self.held.push(block);
    }

    fn pick(&mut self) -> DeviceBlock {
        let index = self.numbers.below(self.held.len());
        self.held.swap_remove(index)
    }

    fn use_one(&mut self) {
        let index = self.numbers.below(self.held.len());
        let block = &self.held[index];
        let stream = self.streams[self.numbers.below(STREAMS)];
        self.overwrite(block, stream);
    }

    /// All of it, and not a byte more.
    fn overwrite(&self, block: &DeviceBlock, stream: StreamId) {
        let uses = [BlockUse::new(block.id(), Access::Write)];
        let tokens = self.guard.prepare_uses(&uses, stream).unwrap();
        self.rig.ops().fill_pattern(block, 0..block.bytes(), 0xa5a5_a5a5, stream).unwrap();
        self.guard.finish_uses(tokens).unwrap();
    }

    /// Submits the work after the block was deallocated, which an open window allows.
    fn deallocate_inside_a_window(&mut self) {
        let block = self.pick();
        let stream = self.streams[self.numbers.below(STREAMS)];
        let late = a3::Memory::of(&block).again();
        let token = self.guard.prepare_block_use(block.id(), stream, Access::Write).unwrap();
        deallocate(self.guard, block);
        self.rig.ops().fill_pattern(&late, 0..late.bytes(), 0x3c3c_3c3c, stream).unwrap();
        self.guard.finish_uses(token).unwrap();
    }

    fn reap(&mut self) {
        match self.numbers.below(8) {
            0 => assert_eq!(self.guard.check_all(), Ok(Vec::new())),
            1..=2 => drop(self.guard.reap_pending().unwrap()),
            _ => drop(self.guard.try_reap().unwrap()),
        }
    }
}

fn deallocate(guard: &Guard, block: DeviceBlock) {
    let result = guard.deallocate(block).map_err(|refused| {
        let DeallocateError { error, block, .. } = *refused;
        (error, block)
    });
    assert!(result.is_ok(), "{result:?}");
}

fn play(backend: Backend, checks: GuardChecks, operations: usize) {
    let rig = Rig::new();
    let guard = backend.guarded(&rig, checks);
    let leases: [_; STREAMS] = std::array::from_fn(|_| rig.stream());
    let streams: [_; STREAMS] = std::array::from_fn(|index| leases[index].id());
    std::thread::scope(|scope| {
        for (seed, &home) in streams.iter().enumerate() {
            let numbers = Numbers(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed as u64 + 1));
            let rig = &rig;
            let guard = &guard;
            let held = Vec::new();
            let program = Program { rig, guard, streams, home, numbers, held };
            scope.spawn(move || program.run(operations / STREAMS));
        }
    });
    assert_eq!(guard.check_all(), Ok(Vec::new()));
    guard.reap_pending().unwrap();
    assert_eq!((guard.violations(), guard.violations_beyond()), (Vec::new(), 0));
    assert_eq!(guard.unchecked_blocks(), 0);
    let usage = guard.usage();
    assert_eq!((usage.outstanding(), usage.total_allocated), (0, usage.total_freed));
    drop((guard, leases));
    rig.assert_clean();
}

#[test]
fn a_hundred_thousand_clean_operations_on_four_streams_with_immediate_checks() {
    play(Backend::Async, GuardChecks::Immediate, 100_000);
}

#[test]
fn a_hundred_thousand_clean_operations_on_four_streams_with_deferred_checks() {
    play(Backend::Async, GuardChecks::Deferred, 100_000);
}

#[test]
fn clean_operations_over_every_backend_that_tracks() {
    for (backend, checks) in TRACKING.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        play(backend, checks, 4_000);
    }
}

#[test]
fn a_block_is_poisoned_after_all_reads_of_it() {
    for (backend, checks) in TRACKING.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let rig = Rig::new();
        let guard = backend.guarded(&rig, checks);
        let [home, other] = [rig.stream(), rig.stream()];
        let block = guard.allocate(4096, home.id(), TAG).unwrap();
        rig.ops().fill_pattern(&block, 0..4096, 7, home.id()).unwrap();
        guard.record_block_use(&block, home.id()).unwrap();
        let token = guard.prepare_block_use(block.id(), other.id(), Access::Read).unwrap();
        rig.delay(&other);
        rig.ops().check_pattern(&block, 0..4096, 7, other.id(), 0).unwrap();
        guard.finish_uses(token).unwrap();
        deallocate(&guard, block);
        assert_eq!(rig.ops().collect().unwrap(), [], "the reader has seen poison");
        guard.reap_pending().unwrap();
        drop((guard, home, other));
        rig.assert_clean();
    }
}

#[test]
fn the_first_use_of_a_new_block_comes_after_its_poison() {
    let rig = Rig::new();
    let guard = Backend::Async.guarded(&rig, GuardChecks::Deferred);
    let [home, other] = [rig.stream(), rig.stream()];
    let busy = guard.allocate(16, home.id(), TAG).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Events on the home stream at any time: also between the allocation and its poison.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                guard.record_block_use(&busy, home.id()).unwrap();
            }
        });
        for _ in 0..3000 {
            let block = guard.allocate(64, home.id(), TAG).unwrap();
            let token = guard.prepare_block_use(block.id(), other.id(), Access::Write).unwrap();
            rig.ops().fill_pattern(&block, 0..64, 7, other.id()).unwrap();
            rig.ops().check_pattern(&block, 0..64, 7, other.id(), 0).unwrap();
            guard.finish_uses(token).unwrap();
            deallocate(&guard, block);
        }
        done.store(true, Ordering::Relaxed);
    });
    deallocate(&guard, busy);
    guard.reap_pending().unwrap();
    drop((guard, home, other));
    rig.assert_clean();
}
