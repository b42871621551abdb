//! Blocks that are freed on other threads than they were allocated on, streams that come and go,
//! threads that exit: nothing is stranded, and the accounting is exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError,
    UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::StreamLease;
use dmr_streams::StreamPoolConfig;
use dmr_testkit::{Rig, RigConfig};

use crate::upstreams::UPSTREAMS;

const THREADS: u64 = 8;
const ROUNDS: u64 = 3;
const STEPS: u64 = 150;

/// Full now and then.
fn config() -> PoolConfig {
    PoolConfig::fast().with_growth(2 << 20).with_maximum_size(16 << 20)
}

struct Parcel {
    block: DeviceBlock,
    pattern: u32,
}

/// One thread: allocates, fills, hands on; checks what it gets and frees it.
fn work<U: DeviceMemoryResource>(
    rig: &Rig,
    pool: &PoolResource<U>,
    seed: u64,
    inbox: &Receiver<Parcel>,
    others: &[Sender<Parcel>],
) {
    let mut state = seed;
    let mut below = |end: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let mut lease = rig.stream();
    for step in 0..STEPS {
        if step % 40 == 39 {
            // Its blocks live on.
            drop(lease);
            lease = rig.stream();
        }
        let doublings = if below(10) == 0 { 15 } else { 13 };
        let bytes = (256 << below(doublings)) as usize;
        match pool.allocate(bytes, lease.id(), AllocTag::new("parcel")) {
            Ok(block) => {
                let pattern = below(1 << 31) as u32;
                let tokens = use_it(pool, &block, &lease, Access::Write);
                rig.ops().fill_pattern(&block, 0..bytes, pattern, lease.id()).unwrap();
                pool.finish_uses(tokens).unwrap();
                let to = below(others.len() as u64) as usize;
                others[to].send(Parcel { block, pattern }).unwrap();
            }
            Err(ResourceError::OutOfMemory { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        while let Ok(Parcel { block, pattern }) = inbox.try_recv() {
            let tokens = use_it(pool, &block, &lease, Access::Read);
            let part = 0..bytes.min(block.bytes()).min(512);
            rig.ops().check_pattern(&block, part, pattern, lease.id(), seed).unwrap();
            if below(8) == 0 {
                // Inside of its window.
                pool.deallocate(block).unwrap();
                pool.finish_uses(tokens).unwrap();
                continue;
            }
            pool.finish_uses(tokens).unwrap();
            pool.deallocate(block).unwrap();
        }
        if below(50) == 0 {
            pool.trim_to(4 << 20).unwrap();
        }
    }
}

fn use_it<U: DeviceMemoryResource>(
    pool: &PoolResource<U>,
    block: &DeviceBlock,
    lease: &StreamLease,
    access: Access,
) -> dmr_core::UseTokens {
    pool.prepare_uses(&[BlockUse::new(block.id(), access)], lease.id()).unwrap()
}

fn strand_nothing<U: DeviceMemoryResource>(config: PoolConfig, make: impl Fn(&Rig) -> U) {
    let rig = Rig::new();
    let pool = PoolResource::new(make(&rig), Arc::clone(rig.streams()), config).unwrap();
    for round in 0..ROUNDS {
        let (senders, inboxes): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
        let inboxes: Vec<Receiver<Parcel>> = std::thread::scope(|scope| {
            let threads: Vec<_> = inboxes
                .into_iter()
                .enumerate()
                .map(|(nth, inbox)| {
                    let senders = senders.clone();
                    let rig = &rig;
                    let pool = &pool;
                    scope.spawn(move || {
                        work(rig, pool, round * THREADS + nth as u64, &inbox, &senders);
                        inbox
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        // What came too late, from streams whose leases are gone.
        drop(senders);
        for Parcel { block, .. } in inboxes.iter().flatten() {
            pool.deallocate(block).unwrap();
        }
        let usage = pool.usage();
        assert_eq!((usage.outstanding(), pool.bytes_outstanding()), (0, 0), "{usage:?}");
        assert_eq!(usage.total_allocated, usage.total_freed);
    }
    assert!(pool.usage().total_allocated > 0);
    // The first poll records the event that shows whether a stream is done with a borrowed chunk.
    for _ in 0..2 {
        rig.device().synchronize().unwrap();
        pool.trim_to(0).unwrap();
    }
    assert_eq!(pool.usage().reserved, 0);
    drop(pool);
    rig.assert_clean();
}

#[test]
fn nothing_is_stranded_over_direct() {
    strand_nothing(config(), |rig| DirectCudaResource::new(Arc::clone(rig.streams())));
}

#[test]
fn nothing_is_stranded_over_the_drivers_pool() {
    strand_nothing(config(), |rig| {
        AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
    });
}

#[test]
fn nothing_is_stranded_over_pages() {
    for waits_first in [false, true] {
        let config = config().with_page_size(2 << 20).with_waits_first(waits_first);
        strand_nothing(config, |rig| {
            VirtualCudaResource::new(Arc::clone(rig.streams()), VirtualConfig::new()).unwrap()
        });
    }
}

/// The next user of the stream of a thread that exits has its memory.
#[test]
fn the_next_stream_in_a_slot_has_what_the_last_one_left() {
    let rig = Rig::new();
    let upstream = DirectCudaResource::new(Arc::clone(rig.streams()));
    let config = PoolConfig::fast().with_growth(2 << 20);
    let pool = PoolResource::new(upstream, Arc::clone(rig.streams()), config).unwrap();
    let _first = rig.stream();
    let visit = |bytes: usize| {
        let visitor = || {
            let lease = rig.stream();
            let block = pool.allocate(bytes, lease.id(), AllocTag::UNTAGGED).unwrap();
            rig.ops().fill_pattern(&block, 0..bytes, 1, lease.id()).unwrap();
            pool.deallocate(block).unwrap();
        };
        std::thread::scope(|scope| scope.spawn(visitor).join().unwrap());
    };
    visit(1 << 20);
    let reserved = pool.usage().reserved;
    (0..10).for_each(|_| visit(1 << 20));
    assert_eq!(pool.usage().reserved, reserved, "the same memory each time");
    // And its arena grows for the new lease as well.
    visit(10 << 20);
    assert_eq!(pool.usage().outstanding(), 0);
    pool.trim_to(0).unwrap();
    assert_eq!(pool.usage().reserved, 0);
    drop((pool, _first));
    rig.assert_clean();
}

/// A program adopts a stream for each query, and has a slot for one at a time.
#[test]
fn the_arena_of_a_retired_stream_grows_for_the_next_one_of_its_slot() {
    for make in UPSTREAMS {
        let streams = StreamPoolConfig::new().with_max_adopted(1);
        let rig = Rig::with(RigConfig { streams, ..RigConfig::default() });
        let config = PoolConfig::fast().with_growth(2 << 20);
        let pool = PoolResource::new(make(&rig), Arc::clone(rig.streams()), config).unwrap();
        for query in 1..=4 {
            let stream = rig.device().context().new_stream().unwrap();
            let lease = rig.streams().adopt(stream).unwrap();
            let block = pool.allocate(query << 22, lease.id(), AllocTag::UNTAGGED).unwrap();
            rig.ops().fill_pattern(&block, 0..block.bytes(), 1, lease.id()).unwrap();
            pool.deallocate(block).unwrap();
            rig.streams().retire_stream(&lease).unwrap();
        }
        drop(pool);
        rig.assert_clean();
    }
}

/// Finds free memory in an arena, also while the thread of its stream is in it.
fn lend_while_busy<U: DeviceMemoryResource>(make: impl FnOnce(&Rig) -> U) {
    let rig = Rig::new();
    let config = PoolConfig::fast().with_maximum_size(4 << 20).with_page_size(2 << 20);
    let pool = PoolResource::new(make(&rig), Arc::clone(rig.streams()), config).unwrap();
    let lender = rig.stream();
    let borrower = rig.stream();
    let allocate =
        |bytes, lease: &StreamLease| pool.allocate(bytes, lease.id(), AllocTag::UNTAGGED);
    pool.deallocate(allocate(4 << 20, &lender).unwrap()).unwrap();
    // With a block in it, it cannot become the borrower's.
    let held = allocate(256, &lender).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                pool.deallocate(allocate(256, &lender).unwrap()).unwrap();
            }
        });
        let refused = (0..300_000).find_map(|_| {
            let block = allocate(1 << 20, &borrower);
            block.map(|block| pool.deallocate(block).unwrap()).err()
        });
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(refused, None);
    });
    pool.deallocate(held).unwrap();
    drop((pool, lender, borrower));
    rig.assert_clean();
}

#[test]
fn a_stream_that_is_never_idle_lends_segments() {
    lend_while_busy(|rig| DirectCudaResource::new(Arc::clone(rig.streams())));
}

#[test]
fn a_stream_that_is_never_idle_lends_pages() {
    lend_while_busy(|rig| {
        VirtualCudaResource::new(Arc::clone(rig.streams()), VirtualConfig::new()).unwrap()
    });
}

/// The blocks of all threads together take half of what there is.
fn refuse_no_thread<U: DeviceMemoryResource>(make: impl FnOnce(&Rig) -> U) {
    let rig = Rig::new();
    let config = PoolConfig::fast().with_maximum_size(4 << 20).with_page_size(2 << 20);
    let config = config.with_growth(2 << 20);
    let pool = PoolResource::new(make(&rig), Arc::clone(rig.streams()), config).unwrap();
    let refused = std::thread::scope(|scope| {
        let work = || {
            let leases: Vec<_> = (0..4).map(|_| rig.stream()).collect();
            let once = |nth: &usize| {
                let stream = leases[nth % 4].id();
                let block = pool.allocate(512 << 10, stream, AllocTag::UNTAGGED)?;
                pool.deallocate(block).unwrap();
                if nth.is_multiple_of(3) {
                    pool.trim_to(0)?;
                }
                Ok::<_, ResourceError>(())
            };
            (0..2_000).filter(|nth| once(nth).is_err()).count()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    assert_eq!(refused, 0);
    drop(pool);
    rig.assert_clean();
}

#[test]
fn half_of_the_memory_is_enough_for_all_threads_in_segments() {
    refuse_no_thread(|rig| DirectCudaResource::new(Arc::clone(rig.streams())));
}

#[test]
fn half_of_the_memory_is_enough_for_all_threads_in_pages() {
    refuse_no_thread(|rig| {
        VirtualCudaResource::new(Arc::clone(rig.streams()), VirtualConfig::new()).unwrap()
    });
}
