//! Bounds the time that one call computes in a pool with very many free chunks. The figures are
//! those of `cargo test --release -p dmr-pool --test sim stalls:: -- --nocapture`; without
//! optimization there are fewer chunks, and the bound is wide.

#![allow(clippy::print_stdout, reason = "the figure is what it is for")]
#![allow(unsafe_code, reason = "reads the clock of a thread")]

use std::thread;
use std::time::Duration;

use crate::support::{MIB, Pool, Upstream, pool_over, rig};
use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, StreamId, UseTrackingExt,
};
use dmr_pool::PoolConfig;
use dmr_sim::Policy;

const SIZE: usize = 64 * 256;
const IS_RELEASE: bool = !cfg!(debug_assertions);
/// The longest call that is accepted.
const BOUND: Duration = Duration::from_millis(if IS_RELEASE { 1 } else { 50 });
/// Free chunks, and pending ones.
const FREE: usize = if IS_RELEASE { 300_000 } else { 30_000 };
const PENDING: usize = FREE / 10;

fn allocate(pool: &Pool, stream: StreamId, bytes: usize) -> Option<DeviceBlock> {
    pool.allocate(bytes, stream, AllocTag::UNTAGGED).ok()
}

/// Returns the processor time of this thread: what other programs do meanwhile does not count.
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid, and every thread has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The longest of some calls: of each size, as many times as there are values of `times`.
fn longest(pool: &Pool, stream: StreamId, sizes: &[usize], times: usize) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        for &bytes in sizes {
            let before = now();
            let block = allocate(pool, stream, bytes);
            longest = longest.max(now() - before);
            block.into_iter().for_each(|block| drop(pool.deallocate(block)));
        }
    }
    longest
}

/// The longest calls of two streams on one arena: its own, which looks for what does not fit, and
/// meanwhile another thread's, which borrows and releases.
fn measure(name: &str, upstream: Upstream, pending: usize, free: usize) -> [Duration; 2] {
    let chunks = pending + free;
    let rig = rig(if pending > 0 { Policy::Lazy } else { Policy::Eager }, 0, 64 << 30);
    let most = (2 * chunks * SIZE) as u64 + 64 * MIB;
    let config = PoolConfig::fast().with_maximum_size(most).with_page_size(8 * MIB);
    let pool = pool_over(upstream, &rig, config);
    let leases = [rig.stream(), rig.stream()];
    let [a, b] = [leases[0].id(), leases[1].id()];
    let mut held = Vec::new();
    let all: Vec<_> = (0..2 * chunks).filter_map(|_| allocate(&pool, a, SIZE)).collect();
    assert_eq!(all.len(), 2 * chunks);
    for (at, block) in all.into_iter().enumerate() {
        if at % 2 == 0 {
            held.push(block);
            continue;
        }
        if at / 2 < pending {
            let uses = [BlockUse::new(block.id(), Access::Read)];
            pool.finish_uses(pool.prepare_uses(&uses, b).unwrap()).unwrap();
        }
        pool.deallocate(block).unwrap();
    }
    // What is left of the last piece of memory.
    held.extend((0..).map_while(|_| allocate(&pool, a, 2 * SIZE)));
    // One stream alone, and then both at the same time.
    let own = longest(&pool, a, &[SIZE + 256, SIZE + 1024], 20);
    let alone = longest(&pool, b, &[SIZE + 256, SIZE + 1024], 20);
    let both = thread::scope(|scope| {
        let other = scope.spawn(|| longest(&pool, b, &[SIZE, SIZE / 2], 2000));
        longest(&pool, a, &[SIZE + 256, SIZE + 1024], 20);
        other.join().unwrap()
    });
    println!("{name}: own stream {own:?}, other stream {alone:?}, beside the own one {both:?}");
    for block in held {
        pool.deallocate(block).unwrap();
    }
    drop(pool);
    drop(leases);
    [own, alone]
}

#[test]
fn no_call_computes_for_long_however_many_chunks_are_free() {
    let mut longest = Duration::ZERO;
    for (name, upstream) in [("segments", Upstream::Direct), ("pages", Upstream::Virtual)] {
        for [own, other] in [
            measure(&format!("{name}, {FREE} free"), upstream, 0, FREE),
            measure(&format!("{name}, {PENDING} pending"), upstream, PENDING, 0),
        ] {
            longest = longest.max(own).max(other);
        }
    }
    assert!(longest < BOUND, "{longest:?}");
}
