//! Whatever driver call fails while the pool grows, borrows, waits, trims or ends: nothing is lost,
//! nothing is out of order, the accounting stays exact, and what failed can be repeated.

use std::cell::Cell;

use crate::support::stage::{ALL, tight};
use crate::support::{
    MIB, OUT_OF_MEMORY, Pool, UNKNOWN, UPSTREAMS, Upstream, pool_over, rig, taken_from_upstream,
};
use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceResult,
    StreamId, UseTokens, UseTrackingExt,
};
use dmr_pool::PoolConfig;
use dmr_sim::{Policy, ReportKind};
use dmr_streams::StreamLease;
use dmr_testkit::Rig;

/// The call again, if it failed: one call fails in each run.
fn insist<T>(mut call: impl FnMut() -> ResourceResult<T>) -> T {
    call().or_else(|_| call()).expect("only one driver call fails")
}

/// A program's means; all that fails is repeated.
struct Cast<'a> {
    rig: &'a Rig,
    pool: &'a Pool,
    streams: [StreamId; 3],
    live: Cell<u64>,
}

impl Cast<'_> {
    fn allocate(&self, stream: StreamId, bytes: usize) -> DeviceBlock {
        let block = insist(|| self.pool.allocate(bytes, stream, AllocTag::UNTAGGED));
        self.rig.universe().region_allocated(block.ptr(), bytes, "block");
        self.live.set(self.live.get() + bytes as u64);
        self.exact();
        block
    }

    fn free(&self, block: DeviceBlock) {
        self.rig.universe().region_freed(block.ptr());
        self.free_in_window(block);
    }

    fn free_in_window(&self, block: DeviceBlock) {
        self.live.set(self.live.get() - block.bytes() as u64);
        if let Err(refused) = self.pool.deallocate(block) {
            self.pool.deallocate(refused.block).expect("only one driver call fails");
        }
        self.exact();
    }

    fn exact(&self) {
        let usage = self.pool.usage();
        assert_eq!(usage.live, self.live.get());
        assert_eq!(usage.total_allocated - usage.total_freed, usage.outstanding());
        assert_eq!(self.pool.stats().reserved, taken_from_upstream(self.pool));
    }

    /// Unrecorded.
    fn fill(&self, stream: StreamId, block: &DeviceBlock) {
        insist(|| self.rig.ops().fill_pattern(block, 0..block.bytes(), 7, stream));
    }

    fn open(&self, stream: StreamId, block: &DeviceBlock, access: Access) -> UseTokens {
        insist(|| self.pool.prepare_uses(&[BlockUse::new(block.id(), access)], stream))
    }

    /// Fills the block, as a declared use.
    fn write(&self, stream: StreamId, block: &DeviceBlock) {
        let tokens = self.open(stream, block, Access::Write);
        self.fill(stream, block);
        // The use stands, whether or not its event could be recorded.
        let _ = self.pool.finish_uses(tokens);
    }

    fn pass(&self, stream: StreamId, bytes: usize) {
        let block = self.allocate(stream, bytes);
        self.fill(stream, &block);
        self.free(block);
    }

    /// A block of `home` that other streams are perhaps not done with.
    fn leave_pending(&self, home: StreamId, bytes: usize, users: &[StreamId]) {
        let block = self.allocate(home, bytes);
        users.iter().for_each(|user| self.write(*user, &block));
        self.free(block);
    }

    fn trim(&self) {
        insist(|| self.pool.trim_to(0));
        self.exact();
    }
}

/// Runs `scenario` on what `prepare` made, once per driver call that it makes, that call failing.
/// Work runs as late as it may, and then at any time. Returns the number of calls that were failed.
fn for_each_driver_call<T>(
    code: i32,
    prepare: impl Fn(&Rig) -> T,
    scenario: impl Fn(&Rig, T),
) -> u64 {
    let mut failed = 0;
    for policy in [Policy::Lazy, Policy::Random] {
        for failing in 1.. {
            let rig = rig(policy, 0, 256 * MIB);
            let prepared = prepare(&rig);
            let before = rig.universe().calls().total();
            rig.universe().fail_call_number(failing, code);
            scenario(&rig, prepared);
            let calls = rig.universe().calls().total() - before;
            rig.universe().clear_faults();
            if calls < failing {
                break;
            }
            failed += 1;
        }
    }
    failed
}

/// Plays a program once per driver call that it makes, that call failing.
fn lose_nothing(config: PoolConfig, play: impl Fn(&Cast<'_>)) {
    lose_nothing_over(&UPSTREAMS, config, play);
}

fn lose_nothing_over(upstreams: &[Upstream], config: PoolConfig, play: impl Fn(&Cast<'_>)) {
    for (upstream, code) in upstreams.iter().flat_map(|up| [(up, OUT_OF_MEMORY), (up, UNKNOWN)]) {
        let prepare = |rig: &Rig| -> (Pool, [StreamLease; 3]) {
            (pool_over(*upstream, rig, config), [rig.stream(), rig.stream(), rig.stream()])
        };
        let failed = for_each_driver_call(code, prepare, |rig, (pool, leases)| {
            let streams = [0, 1, 2].map(|nth: usize| leases[nth].id());
            let cast = Cast { rig, pool: &pool, streams, live: Cell::new(0) };
            play(&cast);
            assert_eq!(pool.usage().outstanding(), 0);
            cast.exact();
            // What upstream cannot free when it is dropped is lost.
            rig.universe().clear_faults();
            drop((pool, leases));
            let verdict = rig.universe().finish();
            assert!(verdict.is_clean(), "{upstream:?}, {code}: {verdict}");
        });
        assert!(failed > 5, "only {failed} calls");
    }
}

#[test]
fn when_it_grows() {
    lose_nothing(PoolConfig::fast().with_growth(4 * MIB), |cast| {
        let [a, b, _] = cast.streams;
        let blocks = [cast.allocate(a, 1 << 20), cast.allocate(b, 3 << 20)];
        let large = cast.allocate(a, 20 << 20);
        cast.fill(a, &large);
        blocks.into_iter().for_each(|block| cast.free(block));
        cast.free(large);
        // A page goes back once its stream is known to be done with it.
        for _ in 0..2 {
            insist(|| cast.rig.device().synchronize());
            cast.trim();
        }
        assert_eq!(cast.pool.usage().reserved, 0);
        cast.pass(a, 1 << 20);
    });
}

#[test]
fn when_streams_borrow_from_each_other() {
    lose_nothing(tight(), |cast| {
        for round in 0..2 {
            for stream in cast.streams {
                cast.pass(stream, ALL / (1 + round));
            }
        }
    });
}

#[test]
fn when_a_stream_waits_for_those_that_used_its_own_memory() {
    lose_nothing(tight(), |cast| {
        let [a, b, c] = cast.streams;
        cast.leave_pending(a, ALL, &[b]);
        cast.pass(a, ALL);
        cast.leave_pending(a, ALL / 2, &[b]);
        cast.leave_pending(a, ALL / 2, &[c]);
        cast.pass(a, ALL);
    });
}

#[test]
fn when_a_third_stream_borrows_what_another_has_used() {
    lose_nothing(tight(), |cast| {
        let [a, b, c] = cast.streams;
        cast.leave_pending(a, ALL, &[b]);
        cast.pass(c, ALL);
        cast.leave_pending(c, ALL, &[a, b]);
        cast.pass(b, ALL);
    });
}

#[test]
fn when_a_block_is_deallocated_in_a_window() {
    lose_nothing(tight(), |cast| {
        let [a, b, c] = cast.streams;
        let block = cast.allocate(a, ALL);
        cast.write(b, &block);
        let at = block.ptr();
        let window = cast.open(c, &block, Access::Write);
        cast.fill(c, &block);
        cast.free_in_window(block);
        assert_eq!(cast.pool.usage().retired, ALL as u64);
        cast.rig.universe().region_freed(at);
        let _ = cast.pool.finish_uses(window);
        cast.pass(a, ALL);
    });
}

#[test]
fn when_it_trims_and_reaps() {
    let config = PoolConfig::fast().with_growth(2 * MIB).with_release_threshold(0);
    lose_nothing(config, |cast| {
        let [a, b, c] = cast.streams;
        cast.leave_pending(a, ALL, &[b, c]);
        cast.leave_pending(b, ALL, &[a]);
        cast.trim();
        cast.pass(c, ALL);
        insist(|| cast.pool.try_reap());
        cast.leave_pending(c, 1 << 20, &[a]);
        insist(|| cast.pool.reap_pending());
        for _ in 0..3 {
            insist(|| cast.rig.device().synchronize());
            cast.trim();
        }
        assert_eq!(cast.pool.usage().reserved, 0);
    });
}

#[test]
fn when_blocks_are_dedicated() {
    let config = PoolConfig::fast().with_dedicated_from(MIB);
    lose_nothing(config, |cast| {
        let [a, b, c] = cast.streams;
        for bytes in [1 << 20, 8 << 20] {
            cast.pass(a, bytes);
            cast.leave_pending(a, bytes, &[b]);
            cast.pass(c, bytes);
            cast.pass(a, bytes);
        }
        cast.trim();
    });
}

#[test]
fn when_what_was_kept_goes_back_for_a_larger_block() {
    lose_nothing(tight().with_maximum_size(4 * MIB), |cast| {
        let [a, b, _] = cast.streams;
        cast.leave_pending(a, ALL, &[b]);
        let other = cast.allocate(b, ALL);
        cast.free(other);
        cast.pass(a, 2 * ALL);
    });
}

#[test]
fn when_scattered_pages_make_a_large_block() {
    let config = PoolConfig::fast().with_maximum_size(8 * MIB);
    lose_nothing_over(&[Upstream::Virtual], config, |cast| {
        let [a, b, _] = cast.streams;
        for taker in [a, b] {
            let mut held: Vec<_> = (0..4).map(|_| cast.allocate(a, ALL)).collect();
            for nth in [2, 0] {
                let block = held.swap_remove(nth);
                cast.fill(a, &block);
                cast.free(block);
            }
            cast.pass(taker, 2 * ALL);
            held.into_iter().for_each(|block| cast.free(block));
            insist(|| cast.pool.try_reap());
            cast.exact();
        }
    });
}

/// Of a stream that has to be waited for, and pages that a third one is not done with.
#[test]
fn when_pages_of_other_streams_make_a_large_block() {
    let config = PoolConfig::compact().with_page_size(2 * MIB).with_maximum_size(8 * MIB);
    lose_nothing_over(&[Upstream::Virtual], config, |cast| {
        let [a, b, c] = cast.streams;
        for readers in [&[][..], &[c]] {
            let mut held: Vec<_> = (0..4).map(|_| cast.allocate(a, ALL)).collect();
            held.sort_by_key(DeviceBlock::ptr);
            for nth in [2, 0] {
                let block = held.remove(nth);
                cast.write(a, &block);
                readers.iter().for_each(|reader| cast.write(*reader, &block));
                cast.free(block);
            }
            cast.pass(b, 2 * ALL);
            // What a failure has left where it was is in order, too.
            cast.pass(a, ALL);
            held.into_iter().for_each(|block| cast.free(block));
            insist(|| cast.pool.try_reap());
            cast.exact();
        }
    });
}

#[test]
fn when_a_block_grows_where_it_is() {
    lose_nothing(PoolConfig::fast().with_growth(8 * MIB), |cast| {
        let [a, b, _] = cast.streams;
        let mut block = cast.allocate(a, 1 << 20);
        cast.write(b, &block);
        for mib in [2, 3, 7] {
            let before = block.bytes() as u64;
            let id = block.id();
            if insist(|| cast.pool.try_grow(&mut block, mib << 20)) {
                cast.rig.universe().region_freed(block.ptr());
                cast.rig.universe().region_allocated(block.ptr(), block.bytes(), "block");
            }
            assert_eq!(block.id(), id);
            cast.live.set(cast.live.get() + block.bytes() as u64 - before);
            cast.exact();
            cast.write(b, &block);
        }
        cast.free(block);
        cast.pass(a, ALL);
    });
}

/// That is the last attempt, so memory that cannot go back is lost; but it serves no other block,
/// and nothing is freed under its users.
#[test]
fn when_it_is_dropped() {
    for upstream in UPSTREAMS {
        let prepare = |rig: &Rig| {
            let pool = pool_over(upstream, rig, PoolConfig::fast().with_growth(2 * MIB));
            let leases = [rig.stream(), rig.stream(), rig.stream()];
            let streams = [0, 1, 2].map(|nth: usize| leases[nth].id());
            let cast = Cast { rig, pool: &pool, streams, live: Cell::new(0) };
            let [a, b, c] = streams;
            cast.leave_pending(a, ALL, &[b]);
            cast.leave_pending(b, ALL, &[a, c]);
            cast.pass(c, ALL);
            (pool, leases)
        };
        let failed = for_each_driver_call(UNKNOWN, prepare, |rig, (pool, leases)| {
            drop(pool);
            drop(leases);
            let reports = rig.universe().finish().reports;
            let wrong = reports.iter().find(|report| report.kind != ReportKind::Leak);
            assert!(wrong.is_none(), "{upstream:?}: {wrong:?}");
            // A segment of each stream; or a page of each, and its addresses.
            let most = if upstream == Upstream::Virtual { 6 } else { 3 };
            assert!(reports.len() <= most, "{upstream:?}: {reports:#?}");
        });
        assert!(failed > 3, "only {failed} calls");
    }
}
