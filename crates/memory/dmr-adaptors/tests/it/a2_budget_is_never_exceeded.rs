//! The limit is kept at every call, every refusal is linearisable, and nothing is left charged:
//! 16 threads, a million operations.
#![cfg(feature = "budget")]

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use crate::a2_support::Backend;
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer, BudgetResource};
use dmr_core::{
    AllocTag, BlockState, DeviceBlock, DeviceMemoryResource, Generation, ResourceError,
};

const THREADS: usize = 16;
const OPERATIONS: usize = 1_000_000 / THREADS;
const LIMIT: u64 = 64 << 20;

type Layered = BudgetResource<Arc<Backend>>;

/// Bytes that were charged, and when at most: from the start of the call that allocated them to
/// the end of the one that deallocated them, or to when the backend freed them.
struct Charged {
    from: u64,
    to: u64,
    bytes: u64,
    retired: Option<Generation>,
}

/// A request that was refused, and when.
struct Refused {
    from: u64,
    to: u64,
    bytes: u64,
}

#[derive(Default)]
struct Log {
    charged: Vec<Charged>,
    refused: Vec<Refused>,
}

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    /// Mostly small, some that fill a good part of the limit, few that are larger than it.
    fn bytes(&mut self) -> usize {
        let largest = match self.below(64) {
            0 => 2 * LIMIT,
            1..=8 => LIMIT / 3,
            9..=30 => LIMIT / 24,
            _ => LIMIT / 200,
        };
        1 + self.below(largest) as usize
    }
}

/// Deallocates a block, and repeats the call until it succeeds.
fn deallocate(layered: &Layered, backend: &Backend, log: &mut Log, held: (u64, DeviceBlock)) {
    let (from, mut block) = held;
    let bytes = block.bytes() as u64;
    let generation = block.generation();
    loop {
        match layered.deallocate(block) {
            Ok(state) => {
                let retired = (state == BlockState::Retired).then_some(generation);
                log.charged.push(Charged { from, to: backend.tick(), bytes, retired });
                return;
            }
            Err(error) => block = error.block,
        }
    }
}

fn work(layered: &Layered, backend: &Backend, seed: u64) -> Log {
    let mut log = Log::default();
    let mut held = Vec::new();
    let mut numbers = Numbers(seed);
    let tag = AllocTag::intern(&format!("thread {seed}"));
    for _ in 0..OPERATIONS {
        if held.len() > 6 || (!held.is_empty() && numbers.below(2) == 0) {
            let block = held.swap_remove(numbers.below(held.len() as u64) as usize);
            deallocate(layered, backend, &mut log, block);
            continue;
        }
        let bytes = numbers.bytes();
        let from = backend.tick();
        let result = layered.allocate(bytes, backend.stream(), tag);
        match result {
            Ok(block) => held.push((from, block)),
            Err(ResourceError::OutOfBudget { .. }) => {
                log.refused.push(Refused { from, to: backend.tick(), bytes: bytes as u64 });
            }
            // The backend's: it was charged while the call lasted.
            Err(_) => {
                let to = backend.tick();
                let bytes = bytes as u64;
                log.charged.push(Charged { from, to, bytes, retired: None });
            }
        }
    }
    held.into_iter().for_each(|block| deallocate(layered, backend, &mut log, block));
    log
}

/// Refusals for which there is no instant, during the call, at which the request did not fit.
fn unjustified(logs: &[Log], backend: &Backend) -> usize {
    const PART: usize = 1024;
    let freed_at = backend.freed_at();
    let end = backend.tick() as usize + 1;
    let mut most = vec![0_i64; end + 1];
    for charged in logs.iter().flat_map(|log| &log.charged) {
        // What was never freed is still retired.
        let freed = |generation| freed_at.get(&generation).copied().unwrap_or(end as u64 - 1);
        let to = charged.retired.map_or(0, freed).max(charged.to) as usize;
        most[charged.from as usize] += charged.bytes as i64;
        most[to + 1] -= charged.bytes as i64;
    }
    let mut sum = 0;
    for change in &mut most {
        sum += *change;
        *change = sum;
    }
    let parts: Vec<_> = most.chunks(PART).map(|part| *part.iter().max().unwrap()).collect();
    let highest = |from: usize, to: usize| {
        let mut at = from;
        let mut highest = 0;
        while at <= to {
            if at.is_multiple_of(PART) && at + PART <= to + 1 {
                highest = highest.max(parts[at / PART]);
                at += PART;
            } else {
                highest = highest.max(most[at]);
                at += 1;
            }
        }
        highest
    };
    let refused = logs.iter().flat_map(|log| &log.refused);
    let is_wrong = |refused: &&Refused| {
        let charged = highest(refused.from as usize, refused.to as usize);
        charged as u64 + refused.bytes <= LIMIT
    };
    refused.filter(is_wrong).count()
}

fn is_exact(backend: Backend, layers: &[BudgetLayer], whole: &Budget) {
    let backend = Arc::new(backend);
    let layered: Vec<_> = layers.iter().map(|layer| layer.layer(Arc::clone(&backend))).collect();
    let logs: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|i| {
                let layered = &layered[i % layered.len()];
                let backend = &backend;
                scope.spawn(move || work(layered, backend, 0x9e37_79b9 + i as u64))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(!backend.was_exceeded(), "more than the limit was out");
    assert_eq!(unjustified(&logs, &backend), 0, "of {} refusals", refusals(&logs));
    assert!(refusals(&logs) > 1000, "the limit was hardly felt: {} refusals", refusals(&logs));
    backend.reap_pending().unwrap();
    layered.iter().for_each(|layered| drop(layered.try_reap()));
    assert_eq!((backend.bytes_outstanding(), whole.reserved_bytes()), (0, 0));
    assert_eq!(whole.holders(), []);
    assert_eq!(whole.remaining(), LIMIT);
}

fn refusals(logs: &[Log]) -> usize {
    logs.iter().map(|log| log.refused.len()).sum()
}

#[test]
fn sixteen_threads_never_exceed_it_and_no_refusal_is_unjustified() {
    let budget = Budget::new(LIMIT);
    let backend = Backend::new().bounded(LIMIT).retiring(3);
    is_exact(backend, &[BudgetLayer::on(&budget)], &budget);
}

#[test]
fn nor_do_they_when_every_third_call_of_the_backend_fails() {
    let budget = Budget::new(LIMIT);
    let backend = Backend::new().bounded(LIMIT).retiring(3).failing(3);
    is_exact(backend, &[BudgetLayer::on(&budget)], &budget);
}

#[test]
fn nor_do_three_tenants_together() {
    let budget = Budget::new(LIMIT);
    let tenant = |name| budget.sub_budget(AllocTag::new(name), LIMIT);
    let tenants = ["a", "b", "c"].map(|name| BudgetLayer::on(&tenant(name)));
    let backend = Backend::new().bounded(LIMIT).retiring(3).failing(7);
    is_exact(backend, &tenants, &budget);
}

/// A thread that has one of `UNITS` permits allocates one of as many units, and leaves the block to
/// any thread; the thread that frees it leaves the permit to any thread. So there is room for each
/// request at every instant.
#[test]
fn what_fits_at_every_instant_is_never_refused() {
    const UNITS: usize = 5;
    const UNIT: usize = 1 << 10;
    let backend = Arc::new(Backend::new().bounded((UNITS * UNIT) as u64));
    let layered = BudgetLayer::new((UNITS * UNIT) as u64).layer(Arc::clone(&backend));
    let permits = AtomicUsize::new(UNITS);
    let left = Mutex::new(Vec::new());
    let take_permit = |permits: usize| permits.checked_sub(1);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..40_000 {
                    if permits.fetch_update(SeqCst, SeqCst, take_permit).is_ok() {
                        let block = layered.allocate(UNIT, backend.stream(), AllocTag::UNTAGGED);
                        let block = block.unwrap_or_else(|error| panic!("{error}"));
                        left.lock().unwrap().push(block);
                    }
                    let block = left.lock().unwrap().pop();
                    if let Some(block) = block {
                        layered.deallocate(block).unwrap();
                        permits.fetch_add(1, SeqCst);
                    }
                }
            });
        }
    });
    assert!(!backend.was_exceeded());
    left.into_inner().unwrap().into_iter().for_each(|block| {
        layered.deallocate(block).unwrap();
    });
    assert_eq!(layered.budget().reserved_bytes(), 0);
}
