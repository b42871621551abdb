//! Bounds the work under one hold of an arena's lock, in an arena of very many chunks.

use dmr_core::{Access, BlockUse, DeviceMemoryResource, UseTrackingExt};
use dmr_sim::Policy;

use super::{MIB, Stage};
use crate::PoolConfig;
use crate::tests::work::longest_hold;

/// Looks at chunks during an allocation, a free or a report, at most, under one hold. Each takes
/// some nanoseconds.
const BOUND: u64 = 25_000;
/// Free chunks.
const MANY: usize = 300_000;

fn assert_bounded(what: &str, act: impl FnOnce()) {
    let looks = longest_hold(act);
    assert!(looks <= BOUND, "{what}: {looks} chunks were looked at under one lock");
}

/// Each arena is full of free chunks that are one unit smaller than what is asked for, and of
/// blocks between them.
fn many_free_chunks_that_do_not_fit(is_paged: bool) {
    const SIZE: usize = 64 * 256;
    let bytes = 2 * MANY as u64 * SIZE as u64;
    let config = PoolConfig::fast().with_maximum_size(bytes.next_multiple_of(64 * MIB));
    let stage = Stage::new(is_paged, Policy::Eager, config.with_page_size(2 * MIB));
    let [a, b] = stage.streams();
    let blocks = stage.fill(a, SIZE, usize::MAX);
    assert!(blocks.len() >= 2 * MANY, "{}", blocks.len());
    let mut held = stage.free_every_second(blocks);
    for (name, stream) in [("the own stream", a), ("another stream", b)] {
        for bytes in [SIZE + 1, 8 * SIZE, 4 << 20] {
            let what = format!("{name} asks for {bytes} bytes");
            assert_bounded(&what, || held.extend(stage.allocate(stream, bytes)));
        }
        assert_bounded(name, || held.extend(stage.allocate(stream, SIZE)));
    }
    assert_bounded("stats", || assert!(stage.pool.stats().cached > bytes / 3));
    assert_bounded("shortage", || assert!(stage.pool.shortage().cached > bytes / 3));
    let estimate = stage.pool.estimated_shortage();
    let exact = stage.pool.shortage();
    assert_eq!((estimate.cached, estimate.pending), (exact.cached, exact.pending));
    assert_eq!(estimate.largest_free, exact.largest_free);
    let ratio = estimate.holders[0].bytes as f64 / exact.holders[0].bytes as f64;
    assert!((0.8..1.2).contains(&ratio), "{ratio}");
    assert_bounded("heap map", || assert!(stage.pool.heap_map().len() > MANY));
    assert_bounded("trim", || assert!(stage.pool.trim_to(0).is_ok()));
    stage.end(held);
}

#[test]
fn a_search_among_many_free_chunks_of_segments_is_short() {
    many_free_chunks_that_do_not_fit(false);
}

#[test]
fn a_search_among_many_free_chunks_in_pages_is_short() {
    many_free_chunks_that_do_not_fit(true);
}

/// Every second block of a stream was used by another stream, which is not known to be done.
fn many_pending_chunks(is_paged: bool) {
    const SIZE: usize = 64 * 256;
    const PENDING: usize = 30_000;
    let bytes = 2 * PENDING as u64 * SIZE as u64;
    let config = PoolConfig::fast().with_maximum_size(bytes.next_multiple_of(64 * MIB));
    let stage = Stage::new(is_paged, Policy::Lazy, config.with_page_size(2 * MIB));
    let [a, b] = stage.streams();
    let mut held = Vec::new();
    for (at, block) in stage.fill(a, SIZE, usize::MAX).into_iter().enumerate() {
        if at % 2 == 0 {
            held.push(block);
            continue;
        }
        let uses = [BlockUse::new(block.id(), Access::Read)];
        let tokens = stage.pool.prepare_uses(&uses, b).unwrap();
        stage.pool.finish_uses(tokens).unwrap();
        stage.free(block);
    }
    assert!(stage.pool.stats().pending > bytes / 3);
    for (name, stream) in [("the own stream", a), ("another stream", b)] {
        for bytes in [SIZE / 2, SIZE + 1, 8 * SIZE, 4 << 20] {
            let what = format!("{name} asks for {bytes} bytes");
            assert_bounded(&what, || held.extend(stage.allocate(stream, bytes)));
        }
    }
    assert_bounded("stats", || drop(stage.pool.stats()));
    assert_bounded("reap", || drop(stage.pool.reap_pending()));
    assert_bounded("trim", || drop(stage.pool.trim_to(0)));
    stage.end(held);
}

#[test]
fn a_search_among_many_pending_chunks_of_segments_is_short() {
    many_pending_chunks(false);
}

#[test]
fn a_search_among_many_pending_chunks_in_pages_is_short() {
    many_pending_chunks(true);
}

/// Chunks of more than a mebibyte, all of one bin, and addresses without memory between them.
#[test]
fn a_search_among_many_large_chunks_and_holes_is_short() {
    const PAGES: u64 = 20_000;
    let config = PoolConfig::fast().with_maximum_size(PAGES * 2 * MIB);
    let stage = Stage::new(true, Policy::Eager, config.with_page_size(2 * MIB));
    let [a, b] = stage.streams();
    let blocks = stage.fill(a, (2 << 20) + 256, usize::MAX);
    assert!(blocks.len() > 15_000, "{}", blocks.len());
    let mut held = stage.free_every_second(blocks);
    // Their whole pages move, and leave holes.
    held.extend(stage.fill(b, 6 << 20, 500));
    for (name, stream) in [("the own stream", a), ("another stream", b)] {
        for bytes in [(2 << 20) + 512, 5 << 20, 64 << 20] {
            let what = format!("{name} asks for {bytes} bytes");
            assert_bounded(&what, || held.extend(stage.allocate(stream, bytes)));
        }
    }
    stage.end(held);
}
