//! Threads, random sizes, uses on other streams, trims, reaps and failing driver calls: no two
//! blocks overlap, the limit holds at every instant, the accounting is exact, and everything goes
//! back.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{
    MIB, OUT_OF_MEMORY, Pool, UNKNOWN, UPSTREAMS, Upstream, pool_over, rig, taken_from_upstream,
    trim_completely,
};
use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError,
    StreamId, UseTrackingExt,
};
use dmr_pool::PoolConfig;
use dmr_programs::random::Random;
use dmr_sim::Policy;
use dmr_testkit::Rig;

const THREADS: u64 = 4;
/// Of each thread.
const STEPS: u64 = 400;
const LIMIT: u64 = 24 * MIB;

struct Scene<'a> {
    rig: &'a Rig,
    pool: &'a Pool,
    /// End of each live block, by its address.
    blocks: Mutex<BTreeMap<u64, u64>>,
    served: AtomicU64,
    failed: AtomicU64,
}

impl Scene<'_> {
    fn expected(&self, error: &ResourceError) {
        match error {
            ResourceError::OutOfMemory { .. } => {}
            ResourceError::Driver { code: UNKNOWN | OUT_OF_MEMORY, .. } => self.has_failed(),
            other => panic!("{other}"),
        }
    }

    fn has_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    fn lease(&self) -> dmr_streams::StreamLease {
        loop {
            match self.rig.streams().acquire() {
                Ok(lease) => return lease,
                Err(error) => self.expected(&error),
            }
        }
    }

    fn enter(&self, block: &DeviceBlock) {
        let start = block.ptr();
        let end = block.ptr() + block.bytes() as u64;
        let mut blocks = self.blocks.lock().unwrap();
        if let Some((&other, &its_end)) = blocks.range(..end).next_back() {
            assert!(its_end <= start, "{start:x}..{end:x} and {other:x}..{its_end:x}");
        }
        blocks.insert(start, end);
        drop(blocks);
        self.rig.universe().region_allocated(start, block.bytes(), "block");
    }

    fn leave(&self, block: &DeviceBlock) {
        self.rig.universe().region_freed(block.ptr());
        self.blocks.lock().unwrap().remove(&block.ptr()).expect("it is live");
    }

    fn free(&self, mut block: DeviceBlock) {
        self.leave(&block);
        while let Err(refused) = self.pool.deallocate(block) {
            self.expected(&refused.error);
            block = refused.block;
        }
    }

    fn write(&self, block: &DeviceBlock, stream: StreamId, random: &mut Random) {
        let uses = [BlockUse::new(block.id(), Access::Write)];
        match self.pool.prepare_uses(&uses, stream) {
            Ok(tokens) => {
                let bytes = block.bytes().min(4096);
                let filled =
                    self.rig.ops().fill_pattern(block, 0..bytes, random.below(99) as u32, stream);
                if let Err(error) = filled {
                    self.expected(&error);
                }
                if let Err(error) = self.pool.finish_uses(tokens) {
                    self.expected(&error);
                }
            }
            Err(error) => self.expected(&error),
        }
    }

    fn work(&self, seed: u64, faults: bool) {
        let mut random = Random::new(seed);
        let mut lease = self.lease();
        let other = self.lease();
        let mut held: Vec<DeviceBlock> = Vec::new();
        for step in 0..STEPS {
            if faults && random.below(12) == 0 {
                let code = if random.below(2) == 0 { OUT_OF_MEMORY } else { UNKNOWN };
                self.rig.universe().fail_call_number(1 + random.below(20), code);
            }
            if step % 64 == 63 {
                lease = self.lease();
            }
            match random.below(20) {
                0..=8 => {
                    let bytes = match random.below(4) {
                        0 => 256 << random.below(4),
                        1 => 1 + random.below(1 << 16),
                        2 => 1 + random.below(2 * MIB),
                        _ => 2 * MIB * (1 + random.below(3)),
                    };
                    match self.pool.allocate(bytes as usize, lease.id(), AllocTag::new("block")) {
                        Ok(block) => {
                            self.served.fetch_add(1, Ordering::Relaxed);
                            self.enter(&block);
                            held.push(block);
                        }
                        Err(error) => self.expected(&error),
                    }
                }
                9..=14 if !held.is_empty() => {
                    let block = held.swap_remove(random.below(held.len() as u64) as usize);
                    if random.below(2) == 0 {
                        let stream = if random.below(2) == 0 { &lease } else { &other };
                        self.write(&block, stream.id(), &mut random);
                    }
                    if random.below(4) == 0 {
                        let uses = [BlockUse::new(block.id(), Access::Read)];
                        let tokens = self.pool.prepare_uses(&uses, other.id());
                        self.free(block);
                        match tokens {
                            Ok(tokens) => drop(self.pool.finish_uses(tokens)),
                            Err(error) => self.expected(&error),
                        }
                    } else {
                        self.free(block);
                    }
                }
                15 if !held.is_empty() => {
                    let at = random.below(held.len() as u64) as usize;
                    let mut block = held.swap_remove(at);
                    self.leave(&block);
                    let more = block.bytes() + 256 + random.below(MIB) as usize;
                    match self.pool.try_grow(&mut block, more) {
                        // Its lease was returned.
                        Ok(_) | Err(ResourceError::StreamMisuse { .. }) => {}
                        Err(error) => self.expected(&error),
                    }
                    self.enter(&block);
                    held.push(block);
                }
                16 => {
                    if let Err(error) = self.pool.trim_to(random.below(LIMIT)) {
                        self.expected(&error);
                    }
                }
                17 => {
                    if let Err(error) = self.pool.try_reap() {
                        self.expected(&error);
                    }
                }
                18 if random.below(8) == 0 => {
                    if let Err(error) = self.pool.reap_pending() {
                        self.expected(&error);
                    }
                }
                _ => {
                    if held.len() > 12 {
                        let block = held.swap_remove(0);
                        self.free(block);
                    }
                }
            }
        }
        held.into_iter().for_each(|block| self.free(block));
    }
}

/// Returns the bytes that the pool has from its upstream; `None` if they have changed meanwhile.
/// Upstream adds the counts of its streams one after the other: the sum is that of one instant if
/// two in a row are the same.
fn taken_at_one_instant(pool: &Pool) -> Option<u64> {
    let totals = || {
        let usage = pool.upstream().usage();
        (usage.total_allocated, usage.total_freed, taken_from_upstream(pool))
    };
    let before = totals();
    (before == totals()).then_some(before.2)
}

fn stress(upstream: Upstream, policy: Policy, seed: u64, faults: bool) {
    let rig = rig(policy, seed, 32 * MIB);
    let base = if seed.is_multiple_of(2) { PoolConfig::fast() } else { PoolConfig::compact() };
    let config = base
        .with_growth(4 * MIB)
        .with_maximum_size(LIMIT)
        .with_dedicated_from(if seed.is_multiple_of(3) { 4 * MIB } else { u64::MAX });
    let pool = pool_over(upstream, &rig, config);
    let scene = Scene {
        rig: &rig,
        pool: &pool,
        blocks: Mutex::default(),
        served: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    };
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let scene = &scene;
        let workers: Vec<_> = (0..THREADS)
            .map(|nth| scope.spawn(move || scene.work(seed * 100 + nth, faults)))
            .collect();
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let reserved = pool.stats().reserved;
                assert!(reserved <= LIMIT, "{reserved}");
                if let Some(taken) = taken_at_one_instant(&pool) {
                    assert!(taken <= LIMIT, "{taken}");
                }
                thread::sleep(Duration::from_micros(20));
            }
        });
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        ended.store(true, Ordering::Relaxed);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
    rig.universe().clear_faults();
    assert!(pool.reserved_high() <= LIMIT);
    let what = format!("{upstream:?} {policy:?} {seed}");
    let usage = pool.usage();
    assert_eq!((usage.live, usage.outstanding()), (0, 0), "{what}: {usage:?}");
    assert_eq!(pool.stats().reserved, taken_from_upstream(&pool), "{what}");
    trim_completely(&rig, &pool);
    pool.reap_pending().unwrap();
    trim_completely(&rig, &pool);
    assert_eq!(pool.usage().reserved, 0, "{what}: {:?}", pool.stats());
    assert!(scene.served.into_inner() > STEPS, "{what}");
    assert_eq!(scene.failed.into_inner() > 0, faults, "{what}");
    drop(pool);
    rig.assert_clean();
}

#[test]
fn threads_that_allocate_free_trim_and_reap_under_a_limit_lose_and_overlap_nothing() {
    for seed in 0..6 {
        for upstream in UPSTREAMS {
            for policy in [Policy::Random, Policy::Lazy, Policy::Eager] {
                stress(upstream, policy, seed, false);
                stress(upstream, policy, seed, true);
            }
        }
    }
}
