//! Random programs over a pool: several streams, little memory, and every byte is checked.

use std::collections::HashMap;
use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockState, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps,
    Generation, ResourceError, StreamId, UseTokens,
};
use dmr_streams::StreamLease;
use dmr_testkit::Rig;

use super::draw::{Rng, config};
use super::witness::{Teller, Witness};
use super::{MIB, Pool, Upstream, give_all_back, pool_with, shadow_of, taken_from_upstream};

/// What a program has come across: what a run of many must have come across at least once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) allocated: u64,
    /// Allocations that were refused for want of memory.
    pub(crate) refused: u64,
    /// Given back while a window was open.
    pub(crate) retired: u64,
    /// Made larger in place.
    pub(crate) grown: u64,
}

impl Seen {
    pub(crate) fn add(&mut self, other: Self) {
        self.allocated += other.allocated;
        self.refused += other.refused;
        self.retired += other.retired;
        self.grown += other.grown;
    }
}

/// Plays the program of this number; it was in order, and afterwards everything has gone back.
pub(crate) fn play(rig: &Rig, upstream: Upstream, number: u64, steps: u64) -> Seen {
    in_order(rig, number, || perform(rig, upstream, number, steps))
}

/// Plays it on an observed pool: what that told the witness was right.
pub(crate) fn play_observed(rig: &Rig, on: Upstream, witness: &Arc<Witness>, number: u64) -> Seen {
    let seen = in_order(rig, number, || perform_with(rig, (on, Some(witness)), number, 40));
    assert_eq!(witness.wrong(), [""; 0], "program {number}");
    witness.assert_settled();
    assert_eq!(witness.freed(), seen.allocated, "program {number}");
    seen
}

fn in_order(rig: &Rig, number: u64, perform: impl FnOnce() -> Seen) -> Seen {
    let seen = perform();
    let wrong = rig.ops().collect().unwrap();
    assert!(wrong.is_empty(), "program {number}: wrong bytes: {wrong:?}");
    assert_eq!(rig.verdict(), Ok(()), "program {number}");
    seen
}

/// Plays it, in order or not. What a panic says begins with the number.
pub(crate) fn perform(rig: &Rig, upstream: Upstream, number: u64, steps: u64) -> Seen {
    perform_with(rig, (upstream, None), number, steps)
}

fn perform_with(
    rig: &Rig,
    (upstream, witness): (Upstream, Option<&Arc<Witness>>),
    number: u64,
    steps: u64,
) -> Seen {
    let mut rng = Rng::new(number);
    let (config, scale) = config(&mut rng);
    // Half of those over pages take more before they wait.
    let config = match upstream {
        Upstream::Virtual if number % 2 == 1 => config.with_page_size(2 * MIB),
        _ => config,
    };
    let observer = witness.cloned().map(|witness| witness as _);
    let pool = pool_with(upstream, rig, config, observer);
    let streams = 2 + rng.below(4);
    let streams = (0..streams).map(|_| rig.stream()).collect();
    let mut player = Player {
        rig,
        pool: &pool,
        tell: Teller { rig, witness: witness.map(|witness| &**witness) },
        number,
        rng,
        scale,
        streams,
        blocks: Vec::new(),
        windows: Vec::new(),
        facts: HashMap::new(),
        seen: Seen::default(),
    };
    for _ in 0..steps {
        player.step();
        player.count();
    }
    player.end();
    let (seen, streams) = (player.seen, player.streams);
    give_all_back(rig, &pool);
    assert_eq!(pool.usage().reserved, 0, "program {number}: {:?}", pool.usage());
    drop((pool, streams));
    seen
}

struct Player<'a> {
    rig: &'a Rig,
    pool: &'a Pool,
    tell: Teller<'a>,
    number: u64,
    rng: Rng,
    scale: u64,
    streams: Vec<StreamLease>,
    blocks: Vec<Held>,
    windows: Vec<Open>,
    facts: HashMap<Generation, Facts>,
    seen: Seen,
}

struct Held {
    block: DeviceBlock,
    /// Which of the program's streams it was allocated on; `None` if that lease is gone.
    home: Option<usize>,
    /// Its home stream has worked with it without recording that.
    is_private: bool,
}

/// What is known of a block until nobody can use it any more.
#[derive(Default)]
struct Facts {
    pattern: Option<u32>,
    windows: usize,
    given_back: bool,
}

struct Open {
    tokens: UseTokens,
    stream: usize,
    uses: Vec<(DeviceBlock, Access)>,
    /// No work was submitted.
    is_idle: bool,
}

impl Player<'_> {
    fn step(&mut self) {
        match self.rng.below(100) {
            0..34 => self.allocate(),
            34..62 => self.launch(),
            62..66 => self.work_at_home(),
            66..68 => self.grow(),
            68..87 => self.give_back(),
            87..92 => self.close(),
            92..94 => self.delay(),
            94 => self.learn(),
            95 => drop(self.pool.try_reap().unwrap()),
            96 => drop(self.pool.reap_pending().unwrap()),
            97 => {
                let bytes = self.rng.below(4) * MIB * self.scale;
                self.pool.trim_to(bytes).unwrap();
            }
            98 => self.swap_stream(),
            _ => self.submit_late(),
        }
    }

    fn allocate(&mut self) {
        const CLASSES: [u64; 5] = [256, 20_000, 65_536, 300_000, 600_000];
        let class = CLASSES[self.rng.below(5) as usize];
        let jitter = if self.rng.one_in(2) { 4 * self.rng.below(class / 8) } else { 0 };
        let bytes = ((class + jitter) * self.scale) as usize;
        let home = self.any_stream();
        let block = match self.pool.allocate(bytes, self.id(home), AllocTag::new("block")) {
            Ok(block) => block,
            Err(ResourceError::OutOfMemory { .. }) => {
                self.seen.refused += 1;
                (0..3).for_each(|_| self.give_back());
                return;
            }
            Err(other) => panic!("program {}: {other:?}", self.number),
        };
        self.seen.allocated += 1;
        self.tell.allocated(block.ptr(), bytes);
        self.facts.insert(block.generation(), Facts::default());
        self.blocks.push(Held { block, home: Some(home), is_private: false });
        let index = self.blocks.len() - 1;
        match self.rng.below(8) {
            0..4 => {
                self.blocks[index].is_private = true;
                self.work(home, &shadow_of(&self.blocks[index].block), Access::Write);
            }
            4..7 => {
                let stream = if self.rng.one_in(2) { home } else { self.any_stream() };
                self.launch_on(stream, &[index]);
            }
            _ => {}
        }
    }

    /// Work on some stream that uses some blocks, all of it recorded.
    fn launch(&mut self) {
        let stream = self.any_stream();
        let mut picked: Vec<_> =
            (0..1 + self.rng.below(3)).filter_map(|_| self.any_block()).collect();
        picked.sort_unstable();
        picked.dedup();
        let can_use = |&index: &usize| {
            let held = &self.blocks[index];
            !held.is_private || held.home == Some(stream)
        };
        picked.retain(can_use);
        self.launch_on(stream, &picked);
    }

    fn launch_on(&mut self, stream: usize, picked: &[usize]) {
        let mut uses = Vec::new();
        for &index in picked {
            let access =
                [Access::Read, Access::Write, Access::ReadWrite][self.rng.below(3) as usize];
            let filled = self.facts[&self.blocks[index].block.generation()].pattern.is_some();
            let access = if filled { access } else { Access::Write };
            uses.push((shadow_of(&self.blocks[index].block), access));
        }
        let asked: Vec<_> =
            uses.iter().map(|(block, access)| BlockUse::new(block.id(), *access)).collect();
        let tokens = match self.pool.prepare_uses(&asked, self.id(stream)) {
            Ok(tokens) => tokens,
            Err(ResourceError::WindowConflict { .. }) => {
                let open = uses.iter().any(|(block, _)| self.fact(block).windows > 0);
                return assert!(open, "program {}: no window is open", self.number);
            }
            Err(other) => panic!("program {}: {other:?}", self.number),
        };
        for (block, _) in &uses {
            self.fact(block).windows += 1;
        }
        let stays_open = self.rng.one_in(4);
        let is_idle = stays_open && self.rng.one_in(3);
        let mut open = Open { tokens, stream, uses, is_idle };
        if stays_open {
            if !is_idle {
                self.work_in(&open);
            }
            self.windows.push(open);
        } else {
            open.is_idle = false;
            self.finish(open, false);
        }
    }

    fn work_in(&mut self, open: &Open) {
        for (block, access) in &open.uses {
            self.work(open.stream, block, *access);
        }
    }

    /// Ends a window, with more work or without any.
    fn finish(&mut self, open: Open, cancel: bool) {
        if !cancel {
            self.work_in(&open);
        }
        for (block, access) in &open.uses {
            let fact = self.fact(block);
            fact.windows -= 1;
            let (last, generation) = (fact.windows == 0 && fact.given_back, block.generation());
            if last {
                self.tell.freed(block.ptr());
                self.facts.remove(&generation);
            }
            let held = self.blocks.iter_mut().find(|held| held.block.id() == block.id());
            if let Some(held) = held
                && *access == Access::ReadWrite
                && held.home == Some(open.stream)
                && !cancel
            {
                held.is_private = false;
            }
        }
        let ended = match cancel {
            true => self.pool.cancel_uses(open.tokens),
            false => self.pool.finish_uses(open.tokens),
        };
        assert_eq!(ended, Ok(()), "program {}", self.number);
    }

    fn close(&mut self) {
        if self.windows.is_empty() {
            return;
        }
        let at = self.rng.below(self.windows.len() as u64) as usize;
        let open = self.windows.swap_remove(at);
        let cancel = open.is_idle && self.rng.one_in(2);
        self.finish(open, cancel);
    }

    /// In place. To the simulator its content is undefined afterwards.
    fn grow(&mut self) {
        let Some(index) = self.any_block() else { return };
        let Held { block, home, .. } = &mut self.blocks[index];
        let (id, ptr) = (block.id(), block.ptr());
        let is_large = block.bytes() as u64 > MIB / 2 * self.scale;
        if home.is_none() || is_large || self.facts[&id.generation()].windows > 0 {
            return;
        }
        let bytes = block.bytes() + 4 * self.rng.below(block.bytes() as u64 / 2) as usize;
        if !self.pool.try_grow(block, bytes).unwrap() {
            return;
        }
        assert_eq!((block.ptr(), block.id(), block.bytes()), (ptr, id, bytes));
        self.seen.grown += 1;
        self.tell.freed(ptr);
        self.tell.allocated(ptr, bytes);
        self.facts.insert(id.generation(), Facts::default());
    }

    /// Unrecorded, as the home stream may.
    fn work_at_home(&mut self) {
        let Some(index) = self.any_block() else { return };
        let held = &self.blocks[index];
        let (Some(home), block) = (held.home, shadow_of(&held.block)) else { return };
        if self.fact(&block).windows > 0 {
            return;
        }
        if !self.blocks[index].is_private {
            // From now on the home stream comes after all others.
            let uses = [BlockUse::new(block.id(), Access::Write)];
            let tokens = self.pool.prepare_uses(&uses, self.id(home)).unwrap();
            self.work(home, &block, Access::Write);
            self.pool.finish_uses(tokens).unwrap();
            self.blocks[index].is_private = true;
        }
        let filled = self.fact(&block).pattern.is_some();
        let access = if filled && self.rng.one_in(2) { Access::Read } else { Access::Write };
        self.work(home, &block, access);
    }

    /// What the home stream has kept to itself is made known.
    fn submit_late(&mut self) {
        let Some(index) = self.any_block() else { return };
        let held = &self.blocks[index];
        let Some(home) = held.home.filter(|_| held.is_private) else { return };
        if self.facts[&held.block.generation()].windows == 0 {
            self.pool.record_block_use(&held.block, self.id(home)).unwrap();
            self.blocks[index].is_private = false;
        }
    }

    fn work(&mut self, stream: usize, block: &DeviceBlock, access: Access) {
        let (id, bytes) = (self.id(stream), block.bytes());
        let ops = self.rig.ops();
        if access.reads()
            && let Some(pattern) = self.facts[&block.generation()].pattern
        {
            let part = bytes.min(512);
            let start = if self.rng.one_in(2) { 0 } else { (bytes - part) / 4 * 4 };
            ops.check_pattern(block, start..start + part, pattern, id, self.number).unwrap();
        }
        if access.writes() {
            let pattern = self.rng.next() as u32;
            ops.fill_pattern(block, 0..bytes, pattern, id).unwrap();
            self.fact(block).pattern = Some(pattern);
        }
        self.tell.works(id, block.ptr());
    }

    fn give_back(&mut self) {
        let Some(index) = self.any_block() else { return };
        let Held { block, .. } = self.blocks.swap_remove(index);
        let (id, ptr) = (block.id(), block.ptr());
        let open = self.fact(&block).windows > 0;
        if open {
            self.fact(&block).given_back = true;
            self.seen.retired += 1;
        } else {
            self.facts.remove(&id.generation());
            self.tell.freed(ptr);
        }
        let state = self.pool.deallocate(block).unwrap();
        let expected = if open { BlockState::Retired } else { BlockState::Freed };
        assert_eq!(state, expected, "program {}", self.number);
        assert_eq!(self.pool.is_retired(id), open, "program {}", self.number);
    }

    fn delay(&mut self) {
        let stream = self.any_stream();
        self.rig.ops().delay(self.id(stream), 50_000).unwrap();
    }

    fn learn(&mut self) {
        let stream = self.any_stream();
        self.rig.streams().synchronize(self.id(stream)).unwrap();
    }

    /// A stream goes, another comes.
    fn swap_stream(&mut self) {
        let stream = self.any_stream();
        let private = self.blocks.iter().any(|held| held.home == Some(stream) && held.is_private);
        if private || self.windows.iter().any(|open| open.stream == stream) {
            return;
        }
        for held in self.blocks.iter_mut().filter(|held| held.home == Some(stream)) {
            held.home = None;
        }
        // Half of the time it is the same one.
        let spare = self.rng.one_in(2).then(|| self.rig.stream());
        drop(self.streams.remove(stream));
        self.streams.insert(stream, self.rig.stream());
        drop(spare);
    }

    fn end(&mut self) {
        while !self.windows.is_empty() {
            self.close();
        }
        while !self.blocks.is_empty() {
            self.give_back();
        }
        self.count();
        assert_eq!(self.pool.usage().outstanding(), 0, "program {}", self.number);
    }

    /// The accounting is exact.
    fn count(&self) {
        let usage = self.pool.usage();
        let live: u64 = self.blocks.iter().map(|held| held.block.bytes() as u64).sum();
        let mut retired: HashMap<Generation, u64> = HashMap::new();
        for (block, _) in self.windows.iter().flat_map(|open| &open.uses) {
            if self.facts[&block.generation()].given_back {
                retired.insert(block.generation(), block.bytes() as u64);
            }
        }
        let retired: u64 = retired.values().sum();
        assert_eq!((usage.live, usage.retired), (live, retired), "program {}", self.number);
        let difference = usage.total_allocated - usage.total_freed;
        assert_eq!(difference, live + retired, "program {}", self.number);
        assert_eq!(self.pool.stats().reserved, taken_from_upstream(self.pool), "{}", self.number);
    }

    fn fact(&mut self, block: &DeviceBlock) -> &mut Facts {
        self.facts.get_mut(&block.generation()).expect("facts of a block that is used")
    }

    fn id(&self, stream: usize) -> StreamId {
        self.streams[stream].id()
    }

    fn any_stream(&mut self) -> usize {
        self.rng.below(self.streams.len() as u64) as usize
    }

    fn any_block(&mut self) -> Option<usize> {
        let count = self.blocks.len() as u64;
        (count > 0).then(|| self.rng.below(count) as usize)
    }
}
