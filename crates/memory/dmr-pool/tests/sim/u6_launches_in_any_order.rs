//! U1, U6, U7, U12, U15: launches that are open at the same time on the same streams, and that
//! end, fail and are cancelled in any order: each conflict is refused, nothing else is, no work is
//! out of order, and no block is lost.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;

use dmr_core::Access::{self, Read, ReadWrite, Write};
use dmr_core::{
    AllocTag, BlockId, BlockState, BlockUse, ByteRange, DeviceBlock, DeviceMemoryResource,
    DeviceOps, ResourceError, StreamId, UseTokens, UseTracking, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_programs::random::Random;
use dmr_sim::Policy;
use dmr_streams::StreamLease;
use dmr_testkit::Rig;

use crate::support::{MIB, rig};

const BYTES: usize = 4096;
const QUARTER: u64 = BYTES as u64 / 4;
/// The number of blocks that the program has at any time.
const BLOCKS: usize = 5;
const STEPS: usize = 600;
const MOST_OPEN: usize = 6;

type AnyPool = PoolResource<AsyncCudaResource>;

fn pool(rig: &Rig) -> AnyPool {
    let streams = Arc::clone(rig.streams());
    let upstream = AsyncCudaResource::new(Arc::clone(&streams), AsyncConfig::new()).unwrap();
    PoolResource::new(upstream, streams, PoolConfig::fast().with_growth(MIB)).unwrap()
}

/// Allocates a block, and writes it on its home stream.
fn written_block(rig: &Rig, pool: &AnyPool, on: StreamId) -> DeviceBlock {
    let block = pool.allocate(BYTES, on, AllocTag::UNTAGGED).unwrap();
    let tokens = pool.prepare_block_use(block.id(), on, Write).unwrap();
    rig.ops().fill_pattern(&block, 0..BYTES, 7, on).unwrap();
    pool.finish_uses(tokens).unwrap();
    block
}

/// A window of the model.
#[derive(Clone)]
struct Window {
    block: BlockId,
    access: Access,
    bytes: Range<u64>,
}

impl Window {
    fn conflicts_with(&self, other: &Self) -> bool {
        self.block == other.block
            && self.access.conflicts_with(other.access)
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }
}

struct Launch {
    tokens: UseTokens,
    windows: Vec<Window>,
}

/// One thread, and its launches.
struct Program<'r> {
    rig: &'r Rig,
    pool: AnyPool,
    streams: Vec<StreamLease>,
    blocks: Vec<DeviceBlock>,
    open: Vec<Launch>,
    /// Retired blocks whose windows were open.
    retired: Vec<BlockId>,
    refused: usize,
}

impl Program<'_> {
    fn block(&self, on: StreamId) -> DeviceBlock {
        written_block(self.rig, &self.pool, on)
    }

    /// Returns a use of a block that is not freed, and the same as the model's window.
    fn any_use(&self, random: &mut Random) -> (BlockUse, Window) {
        let block = &self.blocks[random.below(BLOCKS as u64) as usize];
        let access = [Read, Write, ReadWrite][random.below(3) as usize];
        let id = block.id();
        if random.below(3) > 0 {
            let window = Window { block: id, access, bytes: 0..u64::MAX };
            return (BlockUse::new(id, access), window);
        }
        let start = block.ptr() + QUARTER * random.below(3);
        let bytes = start..start + QUARTER * (1 + random.below(2));
        let part = ByteRange::new(start, (bytes.end - bytes.start) as usize);
        (BlockUse::of_bytes(id, access, part), Window { block: id, access, bytes })
    }

    /// Submits the work of a window, if its block is not retired.
    fn submit(&self, window: &Window, on: StreamId) {
        let Some(block) = self.blocks.iter().find(|it| it.id() == window.block) else { return };
        let first = window.bytes.start.saturating_sub(block.ptr()) as usize;
        let end = window.bytes.end.min(block.ptr() + BYTES as u64) - block.ptr();
        let part = if window.bytes.start == 0 { 0..BYTES } else { first..end as usize };
        match window.access {
            Read => self.rig.ops().check_pattern(block, part, 7, on, 0).unwrap(),
            _ => self.rig.ops().fill_pattern(block, part, 7, on).unwrap(),
        }
    }

    fn prepare(&mut self, random: &mut Random) {
        let again = !self.open.is_empty() && random.below(4) == 0;
        let mut launch = match again {
            true => {
                let at = random.below(self.open.len() as u64) as usize;
                self.open.swap_remove(at)
            }
            false => {
                let on = self.streams[random.below(self.streams.len() as u64) as usize].id();
                Launch { tokens: UseTokens::new(on), windows: Vec::new() }
            }
        };
        let on = launch.tokens.stream();
        let count = 1 + random.below(3);
        let (uses, windows): (Vec<_>, Vec<_>) = (0..count).map(|_| self.any_use(random)).unzip();
        let others = self.open.iter().filter(|it| it.tokens.stream().slot() != on.slot());
        let holders: Vec<_> = others
            .filter(|it| it.windows.iter().any(|a| windows.iter().any(|b| a.conflicts_with(b))))
            .map(|it| it.tokens.stream())
            .collect();
        match self.pool.prepare(&uses, &mut launch.tokens) {
            Ok(()) => {
                assert!(holders.is_empty(), "a conflict was not found");
                windows.iter().for_each(|window| self.submit(window, on));
                launch.windows.extend(windows);
            }
            Err(ResourceError::WindowConflict { holder, requested, .. }) => {
                assert!(holders.contains(&holder), "{holder} does not hold it");
                assert_eq!(requested, on);
                self.refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
        assert_eq!(launch.tokens.len(), launch.windows.len());
        if !launch.windows.is_empty() {
            self.open.push(launch);
        }
    }

    fn take(&mut self, random: &mut Random) -> Option<Launch> {
        let at = random.below(self.open.len().max(1) as u64) as usize;
        (at < self.open.len()).then(|| self.open.swap_remove(at))
    }

    fn finish(&mut self, random: &mut Random) {
        let Some(mut launch) = self.take(random) else { return };
        let on = launch.tokens.stream();
        launch.windows.iter().for_each(|window| self.submit(window, on));
        self.pool.finish(&mut launch.tokens).unwrap();
        assert!(launch.tokens.is_empty());
    }

    /// The work that was submitted is recorded by another launch of its stream first.
    fn cancel(&mut self, random: &mut Random) {
        let Some(mut launch) = self.take(random) else { return };
        let mut record = UseTokens::new(launch.tokens.stream());
        let used = |window: &Window| BlockUse::new(window.block, window.access);
        let live = launch.windows.iter().filter(|it| !self.retired.contains(&it.block));
        let uses: Vec<_> = live.map(used).collect();
        if uses.len() < launch.windows.len() || self.pool.prepare(&uses, &mut record).is_err() {
            self.pool.finish(&mut launch.tokens).unwrap();
            return;
        }
        self.pool.finish(&mut record).unwrap();
        self.pool.cancel(&mut launch.tokens).unwrap();
    }

    fn free(&mut self, random: &mut Random) {
        let at = random.below(BLOCKS as u64) as usize;
        let on = self.streams[random.below(self.streams.len() as u64) as usize].id();
        let next = self.block(on);
        let block = std::mem::replace(&mut self.blocks[at], next);
        let id = block.id();
        let is_open = self.open.iter().any(|it| it.windows.iter().any(|it| it.block == id));
        assert_eq!(self.pool.streams().uses().has_open_window(id), is_open);
        let expected = if is_open { BlockState::Retired } else { BlockState::Freed };
        assert_eq!(self.pool.deallocate(block).unwrap(), expected);
        self.retired.push(id);
    }

    fn check(&mut self) {
        let open = &self.open;
        self.retired.retain(|id| open.iter().any(|it| it.windows.iter().any(|it| it.block == *id)));
        let usage = self.pool.usage();
        assert_eq!(usage.live, (BLOCKS * BYTES) as u64);
        assert_eq!(usage.retired, (self.retired.len() * BYTES) as u64, "reaped once and in time");
        let uses = self.pool.streams().uses();
        for block in &self.blocks {
            let id = block.id();
            let is_open = open.iter().any(|it| it.windows.iter().any(|it| it.block == id));
            assert_eq!(uses.has_open_window(id), is_open);
        }
    }

    fn run(&mut self, random: &mut Random) {
        for _ in 0..STEPS {
            match random.below(16) {
                0..=5 if self.open.len() < MOST_OPEN => self.prepare(random),
                6 => self.cancel(random),
                7 | 8 => self.free(random),
                9 => assert!(self.pool.streams().uses().recorded_uses() < 100 * BLOCKS),
                10 => assert_eq!(self.pool.try_reap(), Ok(0), "freed before"),
                _ => self.finish(random),
            }
            if random.below(2) == 0 {
                self.check();
            }
        }
        while !self.open.is_empty() {
            self.finish(random);
        }
        self.check();
    }
}

#[test]
fn exactly_the_conflicts_are_refused_and_every_retired_block_is_freed_once() {
    let mut refused = 0;
    for seed in 0..60 {
        let policy = [Policy::Random, Policy::Lazy, Policy::Eager][seed as usize % 3];
        let rig = rig(policy, seed, 32 * MIB);
        let mut random = Random::new(seed);
        let pool = pool(&rig);
        let own = 1 + seed as usize % 3;
        let mut streams: Vec<_> = (0..own).map(|_| rig.stream()).collect();
        if seed % 4 != 0 {
            streams
                .push(rig.streams().adopt(rig.device().context().new_stream().unwrap()).unwrap());
        }
        let mut program = Program {
            rig: &rig,
            pool,
            streams,
            blocks: Vec::new(),
            open: Vec::new(),
            retired: Vec::new(),
            refused: 0,
        };
        let home = program.streams[0].id();
        program.blocks = (0..BLOCKS).map(|_| program.block(home)).collect();
        program.run(&mut random);
        refused += program.refused;
        for block in std::mem::take(&mut program.blocks) {
            program.pool.deallocate(block).unwrap();
        }
        assert_eq!(program.pool.usage().outstanding(), 0);
        let adopted = program.streams.split_off(own);
        drop(program);
        // No window is left on them.
        adopted.iter().for_each(|lease| rig.streams().retire_stream(lease).unwrap());
        drop(adopted);
        rig.assert_clean();
    }
    assert!(refused > 1000, "{refused}");
}

const THREADS: u64 = 3;

/// Prepares, works, frees and ends launches on streams and blocks that other threads use, too.
fn work(rig: &Rig, pool: &AnyPool, streams: &[StreamLease], blocks: &Shared, seed: u64) {
    let mut random = Random::new(seed);
    let mut open: Vec<UseTokens> = Vec::new();
    for _ in 0..STEPS {
        match random.below(8) {
            0..=3 if open.len() < 3 => {
                let on = streams[random.below(streams.len() as u64) as usize].id();
                let access = [Read, Write][random.below(2) as usize];
                // Locked until the work is submitted: after that, other threads may free it.
                let block = blocks[random.below(BLOCKS as u64) as usize].lock().unwrap();
                match pool.prepare_uses(&[BlockUse::new(block.id(), access)], on) {
                    Ok(tokens) => {
                        let ops = rig.ops();
                        match access {
                            Read => ops.check_pattern(&block, 0..BYTES, 7, on, 0).unwrap(),
                            _ => ops.fill_pattern(&block, 0..BYTES, 7, on).unwrap(),
                        }
                        open.push(tokens);
                    }
                    Err(ResourceError::WindowConflict { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            4 => {
                let on = streams[random.below(streams.len() as u64) as usize].id();
                let next = written_block(rig, pool, on);
                let mut place = blocks[random.below(BLOCKS as u64) as usize].lock().unwrap();
                let last = std::mem::replace(&mut *place, next);
                drop(place);
                pool.deallocate(last).unwrap();
            }
            _ if !open.is_empty() => {
                let at = random.below(open.len() as u64) as usize;
                pool.finish_uses(open.swap_remove(at)).unwrap();
            }
            _ => {}
        }
    }
    for tokens in open {
        pool.finish_uses(tokens).unwrap();
    }
}

type Shared = [Mutex<DeviceBlock>; BLOCKS];

#[test]
fn threads_on_the_same_streams_and_blocks_order_all_work_and_lose_no_block() {
    for seed in 0..30 {
        let policy = [Policy::Random, Policy::Lazy, Policy::Eager][seed as usize % 3];
        let rig = rig(policy, seed, 32 * MIB);
        let pool = pool(&rig);
        let mut streams = vec![rig.stream(), rig.stream()];
        streams.push(rig.streams().adopt(rig.device().context().new_stream().unwrap()).unwrap());
        let home = streams[0].id();
        let blocks: Shared = std::array::from_fn(|_| Mutex::new(written_block(&rig, &pool, home)));
        thread::scope(|scope| {
            let rig = &rig;
            let pool = &pool;
            let streams = &streams;
            let blocks = &blocks;
            for nth in 0..THREADS {
                scope.spawn(move || work(rig, pool, streams, blocks, seed * 100 + nth));
            }
        });
        for block in blocks {
            pool.deallocate(block.into_inner().unwrap()).unwrap();
        }
        assert_eq!(pool.usage().outstanding(), 0, "{seed}");
        assert_eq!(pool.try_reap(), Ok(0));
        drop(pool);
        rig.streams().retire_stream(&streams[2]).unwrap();
        drop(streams);
        rig.assert_clean();
    }
}
