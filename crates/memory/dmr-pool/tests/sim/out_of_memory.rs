//! Out of memory: what the pool has is used before it refuses, the refusal says what is
//! wrong and changes nothing, and it recovers.

use crate::support::stage::{ALL, Stage, tight};
use crate::support::{MIB, UNKNOWN, UPSTREAMS, Upstream, rig};
use dmr_core::{Access, AllocTag, DeviceMemoryResource, ResourceError, UseTrackingExt};
use dmr_pool::PoolConfig;
use dmr_sim::Policy;

#[test]
fn what_others_are_still_using_is_waited_for_rather_than_refused() {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, tight());
        let [a, b, c] = stage.streams();
        for taker in [a, b, c] {
            let block = stage.allocate(a, ALL);
            stage.write(a, &block, 1);
            stage.read(b, &block, 1);
            stage.free(block);
            stage.pass(taker, ALL, 2);
        }
        stage.end();
    }
}

#[test]
fn what_other_streams_have_free_is_used_before_a_refusal() {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, tight());
        let [a, b, c] = stage.streams();
        // Many small ones: some of them are kept for requests of their size.
        let small: Vec<_> = (0..64).map(|_| stage.allocate(a, ALL / 64)).collect();
        small.into_iter().for_each(|block| stage.free(block));
        let block = stage.allocate(b, ALL);
        let refused = stage.try_allocate(c, 256);
        assert!(matches!(refused, Err(ResourceError::OutOfMemory { .. })), "{refused:?}");
        stage.free(block);
        stage.pass(c, ALL, 1);
        stage.end();
    }
}

#[test]
fn a_refusal_changes_nothing_and_says_what_was_requested() {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, tight());
        let [a, b, _] = stage.streams();
        let held = stage.allocate(a, ALL / 2 + 256);
        let before = stage.pool.usage();
        for (stream, bytes) in [(a, ALL), (b, ALL), (a, ALL / 2), (b, 2 * ALL)] {
            let error = stage.try_allocate(stream, bytes).unwrap_err();
            let ResourceError::OutOfMemory { requested, .. } = error else { panic!("{error}") };
            assert_eq!(requested, bytes);
            assert_eq!(stage.pool.usage(), before);
        }
        stage.pass(b, ALL / 2 - 256, 1);
        stage.free(held);
        stage.pass(b, ALL, 2);
        stage.end();
    }
}

#[test]
fn a_refusal_says_what_the_pool_keeps_and_which_tags_hold_the_most() {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, tight());
        let [a, b, _] = stage.streams();
        let ask = |bytes, tag| stage.pool.allocate(bytes, a, AllocTag::new(tag));
        // A block of another tag was where one of the rows is now, and "rows" are counted as such.
        let was = ask(ALL / 8, "gone").unwrap();
        let place = was.ptr();
        stage.pool.deallocate(was).unwrap();
        let held = [(ALL / 4, "keys"), (ALL / 8, "rows"), (ALL / 8, "rows"), (ALL / 8, "rows")];
        let mut held: Vec<_> = held.map(|(bytes, tag)| ask(bytes, tag).unwrap()).into();
        assert!(held.iter().any(|row| row.ptr() == place && row.tag().name() == "rows"));
        let freed = ask(ALL / 8, "freed").unwrap();
        let tokens = stage.open(b, &freed, Access::Write);
        stage.pool.finish_uses(tokens).unwrap();
        stage.pool.deallocate(freed).unwrap();
        let error = ask(ALL, "more").unwrap_err();
        let message = error.to_string();
        let ResourceError::OutOfMemory { requested, live, pool: Some(pool), .. } = error else {
            panic!("{error}")
        };
        let eighth = ALL as u64 / 8;
        assert_eq!((requested, live, pool.reserved), (ALL, 5 * eighth, 8 * eighth));
        // The host does not wait for what is in flight: with it the block would not fit either.
        assert_eq!(pool.cached + pool.pending, 3 * eighth);
        assert_eq!(pool.largest_free, pool.cached);
        let holders: Vec<_> =
            pool.holders.iter().map(|it| (it.tag.name(), it.bytes, it.blocks)).collect();
        assert_eq!(holders, [("rows", 3 * eighth, 3), ("keys", 2 * eighth, 1)]);
        for part in ["2 MiB reserved", "768 KiB held by \"rows\" (3 blocks)"] {
            assert!(message.contains(part), "{message}");
        }
        for block in held.drain(..) {
            stage.pool.deallocate(block).unwrap();
        }
        stage.end();
    }
}

/// Not even where all of it has to be waited for.
#[test]
fn a_small_block_does_not_take_a_large_piece_as_a_whole() {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, tight());
        let [a, b, _] = stage.streams();
        let large = stage.allocate(a, ALL / 2);
        let rest = stage.allocate(a, ALL / 2);
        stage.write(b, &large, 1);
        stage.free(large);
        let small: Vec<_> = (0..4).map(|_| stage.allocate(a, ALL / 8)).collect();
        assert!(small.iter().all(|block| block.reserved_bytes() == ALL / 8), "{small:?}");
        small.into_iter().chain([rest]).for_each(|block| stage.free(block));
        stage.end();
    }
}

#[test]
fn small_segments_go_back_for_a_block_that_none_of_them_can_hold() {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, tight().with_maximum_size(8 * MIB));
        let [a, b, c] = stage.streams();
        let blocks: Vec<_> = [a, b, c, a].map(|stream| stage.allocate(stream, ALL)).into();
        assert_eq!(stage.pool.stats().reserved, 8 * MIB);
        for block in blocks {
            stage.write(a, &block, 1);
            stage.read(b, &block, 1);
            stage.free(block);
        }
        // All of it is pending.
        stage.pass(c, 4 * ALL, 2);
        assert_eq!(stage.pool.stats().reserved, 8 * MIB);
        stage.end();
    }
}

#[test]
fn a_device_that_is_full_is_as_good_as_a_pool_that_is() {
    for upstream in UPSTREAMS {
        for policy in [Policy::Eager, Policy::Lazy] {
            let config = PoolConfig::fast().with_growth(64 * MIB);
            let stage = Stage::on(rig(policy, 3, 64 * MIB), upstream, config);
            let [a, b, _] = stage.streams();
            let mut held = Vec::new();
            let error = loop {
                match stage.try_allocate(if held.len() % 2 == 0 { a } else { b }, 3 << 20) {
                    Ok(block) => held.push(block),
                    Err(error) => break error,
                }
            };
            // The error has the request of the pool's caller, not that of the pool.
            let message = error.to_string();
            let ResourceError::OutOfMemory { requested, live, pool: Some(_), .. } = error else {
                panic!("{message}")
            };
            assert_eq!((requested, live), (3 << 20, held.len() as u64 * (3 << 20)), "{message}");
            assert!(held.len() >= 14, "{} blocks", held.len());
            for block in &held {
                stage.write(a, block, 1);
                stage.read(b, block, 1);
            }
            held.into_iter().for_each(|block| stage.free(block));
            // In one piece, though the pieces are of two streams.
            // The simulated driver's pool makes no large piece of small ones.
            let bytes = if upstream == Upstream::Async { 3 << 20 } else { 48 << 20 };
            stage.pass(a, bytes, 2);
            let beyond = stage.try_allocate(a, 65 << 20).unwrap_err();
            assert!(matches!(beyond, ResourceError::InvalidSize { .. }), "{beyond}");
            stage.end();
        }
    }
}

#[test]
fn a_driver_error_is_not_reported_as_a_lack_of_memory() {
    for (upstream, call) in [
        (Upstream::Direct, "cuMemAlloc_v2"),
        (Upstream::Async, "cuMemAllocFromPoolAsync"),
        (Upstream::Virtual, "cuMemCreate"),
    ] {
        let stage = Stage::new(upstream, PoolConfig::fast().with_growth(2 * MIB));
        let [a, b, _] = stage.streams();
        let pending = stage.allocate(a, ALL);
        let free = stage.allocate(a, ALL);
        stage.write(b, &pending, 1);
        stage.free(pending);
        stage.free(free);
        let before = stage.pool.usage();
        assert_eq!(before.reserved, 4 * MIB, "{upstream:?}");
        for nth in 1..=20 {
            stage.universe().fail_nth(call, nth, UNKNOWN);
        }
        let waited = stage.calls("cuEventSynchronize", || {
            let error = stage.try_allocate(a, 4 * ALL).unwrap_err();
            assert!(matches!(error, ResourceError::Driver { code: UNKNOWN, .. }), "{error}");
        });
        // Nothing that the pool keeps has gone back for it, and nothing was waited for.
        assert_eq!((stage.pool.usage(), waited), (before, 0), "{upstream:?}");
        stage.universe().clear_faults();
        stage.pass(a, 4 * ALL, 2);
        stage.end();
    }
}
