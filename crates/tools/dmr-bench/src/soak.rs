//! The soak: many threads, many streams, a pool under a small budget, and every byte checked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer, BudgetResource};
use dmr_core::sync::lock;
use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError,
    StreamId, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::{PatternOps, StreamPool};
use serde_json::json;

use crate::percentiles::Percentiles;
use crate::{BenchError, Line, Machine};

const TAG: AllocTag = AllocTag::new("soak");

/// The options of a soak.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// The duration.
    pub time: Duration,
    /// Threads, each with a stream of its own.
    pub threads: usize,
    /// The budget below the pool, in bytes.
    pub limit: u64,
    /// The share of the budget that the threads hold in blocks, in per cent.
    pub percent: u64,
    /// The threads trim and reap now and then.
    pub trims: bool,
    /// The configuration of the pool.
    pub config: PoolConfig,
    /// Over blocks of the driver's pool instead of pages that it maps itself.
    pub over_blocks: bool,
}

type Pool = PoolResource<BudgetResource<Arc<dyn DeviceMemoryResource>>>;

/// A block and the pattern that it holds.
struct Held {
    block: DeviceBlock,
    pattern: u32,
}

/// The state that all threads share.
struct Shared {
    pool: Pool,
    ops: PatternOps,
    streams: Vec<StreamId>,
    /// Blocks on their way from one thread to another.
    parcels: Mutex<Vec<Held>>,
    operations: AtomicU64,
    checks: AtomicU64,
    wrong: AtomicU64,
    /// The durations of all allocations.
    durations: Mutex<Durations>,
}

/// Nanoseconds of allocations.
#[derive(Default)]
struct Durations {
    allocated: Vec<u32>,
    refused: Vec<u32>,
}

/// Runs it; returns counts of operations and findings, and the number of blocks whose content has
/// changed.
///
/// # Errors
///
/// If the machine's streams or the pool cannot be made, a call fails for another reason than a full
/// budget, or bytes are lost at the end.
pub fn run(machine: &Machine, soak: Soak) -> Result<(Line, u64), BenchError> {
    let streams = machine.streams()?;
    let budget = Budget::new(soak.limit);
    let pool = pool(&streams, &budget, soak)?;
    let leases: Vec<_> = (0..soak.threads).map(|_| streams.acquire()).collect::<Result<_, _>>()?;
    let shared = Shared {
        pool,
        ops: PatternOps::new(Arc::clone(&streams))?,
        streams: leases.iter().map(|lease| lease.id()).collect(),
        parcels: Mutex::default(),
        operations: AtomicU64::new(0),
        checks: AtomicU64::new(0),
        wrong: AtomicU64::new(0),
        durations: Mutex::default(),
    };
    let start = Instant::now();
    let outcomes: Vec<Result<(), BenchError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..soak.threads)
            .map(|nth| {
                let shared = &shared;
                scope.spawn(move || Worker::new(shared, nth, soak).run(start + soak.time))
            })
            .collect();
        let failed = || Err(BenchError("a thread of the soak panicked".to_owned()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| failed())).collect()
    });
    outcomes.into_iter().collect::<Result<(), _>>()?;
    let left: Vec<_> = std::mem::take(&mut *shared.lock());
    for held in left {
        shared.deallocate(held)?;
    }
    shared.collect()?;
    shared.pool.reap_pending()?;
    shared.pool.trim_to(0)?;
    shared.pool.upstream().reap_pending()?;
    let usage = shared.pool.usage();
    let charged = budget.reserved_bytes();
    if (usage.outstanding(), usage.reserved, charged) != (0, 0, 0) {
        return Err(BenchError(format!("lost: {usage:?}, {charged} bytes charged")));
    }
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let wrong = read(&shared.wrong);
    let page = shared.pool.stats().page_size;
    let params = json!({
        "threads": soak.threads,
        "limit_bytes": soak.limit,
        "percent": soak.percent,
        "page_bytes": page,
    });
    let mut durations = lock(&shared.durations);
    let allocated = Percentiles::of(&mut durations.allocated);
    let refused = Percentiles::of(&mut durations.refused);
    let line = Line::new("pool", "soak", params)
        .with("seconds", start.elapsed().as_secs_f64())
        .with("operations", read(&shared.operations))
        .with("checks", read(&shared.checks))
        .with("refused", refused.n as u64)
        .with("alloc_p50", allocated.p50)
        .with("alloc_p99", allocated.p99)
        .with("alloc_p999", allocated.p999)
        .with("alloc_mean", allocated.mean)
        .with("refused_p50", refused.p50)
        .with("refused_p99", refused.p99)
        .with("refused_max", refused.max)
        .with("refused_mean", refused.mean)
        .with("reserved_high", shared.pool.reserved_high())
        .with("wrong_blocks", wrong)
        .with("simulated", machine.is_simulated());
    match machine.findings().first() {
        None => Ok((line, wrong)),
        Some(first) => {
            Err(BenchError(format!("{line:?}\nthe simulated driver has found: {first}")))
        }
    }
}

fn pool(streams: &Arc<StreamPool>, budget: &Budget, soak: Soak) -> Result<Pool, BenchError> {
    let upstream: Arc<dyn DeviceMemoryResource> = if soak.over_blocks {
        Arc::new(AsyncCudaResource::new(Arc::clone(streams), AsyncConfig::default())?)
    } else {
        let pages = VirtualCudaResource::new(Arc::clone(streams), VirtualConfig::new());
        Arc::new(pages.map_err(BenchError::new)?)
    };
    let upstream = BudgetLayer::on(budget).layer(upstream);
    Ok(PoolResource::new(upstream, Arc::clone(streams), soak.config)?)
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Held>> {
        lock(&self.parcels)
    }

    /// Checks a block on its home stream, after all work of other streams on it, and deallocates
    /// it.
    fn deallocate(&self, held: Held) -> Result<(), BenchError> {
        let Held { block, pattern } = held;
        self.check(&block, pattern, block.alloc_stream())?;
        self.pool.deallocate(block)?;
        Ok(())
    }

    fn check(&self, block: &DeviceBlock, pattern: u32, on: StreamId) -> Result<(), BenchError> {
        self.checks.fetch_add(1, Ordering::Relaxed);
        self.ops.check_pattern(block, 0..block.bytes(), pattern, on, block.generation().get())?;
        Ok(())
    }

    fn collect(&self) -> Result<(), BenchError> {
        let wrong = self.ops.collect()?.len() as u64;
        self.wrong.fetch_add(wrong, Ordering::Relaxed);
        Ok(())
    }
}

/// One thread.
struct Worker<'a> {
    shared: &'a Shared,
    nth: usize,
    held: Vec<Held>,
    bytes: u64,
    most: u64,
    trims: bool,
    random: fastrand::Rng,
    durations: Durations,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared, nth: usize, soak: Soak) -> Self {
        Self {
            shared,
            nth,
            held: Vec::new(),
            bytes: 0,
            most: soak.limit / 100 * soak.percent / soak.threads as u64,
            trims: soak.trims,
            random: fastrand::Rng::with_seed(nth as u64),
            durations: Durations::default(),
        }
    }

    fn run(mut self, until: Instant) -> Result<(), BenchError> {
        while Instant::now() < until {
            for _ in 0..64 {
                self.step()?;
            }
            self.shared.operations.fetch_add(64, Ordering::Relaxed);
        }
        for held in std::mem::take(&mut self.held) {
            self.shared.deallocate(held)?;
        }
        let mut all = lock(&self.shared.durations);
        all.allocated.append(&mut self.durations.allocated);
        all.refused.append(&mut self.durations.refused);
        Ok(())
    }

    fn step(&mut self) -> Result<(), BenchError> {
        match self.random.u64(..4096) {
            0 if self.trims => drop(self.shared.pool.try_reap()?),
            1 if self.trims => drop(self.shared.pool.trim_to(self.random.u64(..self.most.max(1)))?),
            2..=5 => self.shared.collect()?,
            6..=1200 if !self.held.is_empty() => self.read_elsewhere()?,
            1201..=1400 if !self.held.is_empty() => self.exchange(),
            1401..=2400 if !self.held.is_empty() => self.free_one()?,
            _ if self.bytes < self.most => self.allocate()?,
            _ => self.free_one()?,
        }
        Ok(())
    }

    fn allocate(&mut self) -> Result<(), BenchError> {
        let power = self.random.u64(..15);
        let bytes = (256_u64 << power) + self.random.u64(..256 << power);
        let home = self.shared.streams[self.nth];
        let start = Instant::now();
        let allocated = self.shared.pool.allocate(bytes as usize, home, TAG);
        let nanoseconds = u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX);
        let block = match allocated {
            Ok(block) => block,
            Err(ResourceError::OutOfBudget { .. } | ResourceError::OutOfMemory { .. }) => {
                self.durations.refused.push(nanoseconds);
                return self.free_one();
            }
            Err(error) => return Err(error.into()),
        };
        self.durations.allocated.push(nanoseconds);
        let pattern = block.generation().get() as u32 ^ 0x5a5a_a5a5;
        let filled = self.fill(&block, pattern, home);
        self.bytes += block.bytes() as u64;
        self.held.push(Held { block, pattern });
        filled
    }

    /// Fills a block, as a recorded write: other streams will read it.
    fn fill(&self, block: &DeviceBlock, pattern: u32, on: StreamId) -> Result<(), BenchError> {
        let Shared { pool, ops, .. } = self.shared;
        let uses = [BlockUse::new(block.id(), Access::Write)];
        let tokens = pool.prepare_uses(&uses, on)?;
        let filled = ops.fill_pattern(block, 0..block.bytes(), pattern, on);
        pool.finish_uses(tokens)?;
        Ok(filled?)
    }

    fn free_one(&mut self) -> Result<(), BenchError> {
        if self.held.is_empty() {
            return Ok(());
        }
        let at = self.random.usize(..self.held.len());
        let held = self.held.swap_remove(at);
        self.bytes -= held.block.bytes() as u64;
        self.shared.deallocate(held)
    }

    /// Another stream reads a block, and is known to.
    fn read_elsewhere(&mut self) -> Result<(), BenchError> {
        let at = self.random.usize(..self.held.len());
        let on = self.shared.streams[self.random.usize(..self.shared.streams.len())];
        let Held { block, pattern } = &self.held[at];
        let uses = [BlockUse::new(block.id(), Access::Read)];
        let tokens = self.shared.pool.prepare_uses(&uses, on)?;
        let checked = self.shared.check(block, *pattern, on);
        self.shared.pool.finish_uses(tokens)?;
        checked
    }

    /// Exchanges a block with another thread.
    fn exchange(&mut self) {
        let at = self.random.usize(..self.held.len());
        let mine = self.held.swap_remove(at);
        self.bytes -= mine.block.bytes() as u64;
        let theirs = {
            let mut parcels = self.shared.lock();
            parcels.push(mine);
            let first = parcels.len() > self.shared.streams.len();
            first.then(|| parcels.swap_remove(0))
        };
        if let Some(theirs) = theirs {
            self.bytes += theirs.block.bytes() as u64;
            self.held.push(theirs);
        }
    }
}
