//! Each allocation is counted once, wherever its memory comes from.

use dmr_core::DeviceMemoryResource;
use dmr_sim::Policy;

use super::{MIB, Stage};
use crate::PoolConfig;

fn counted_blocks(stage: &Stage) -> u64 {
    stage.pool.arenas().map(|arena| arena.lock().blocks).sum()
}

fn each_allocation_is_counted_once(is_paged: bool) {
    let config = PoolConfig::compact().with_maximum_size(64 * MIB).with_page_size(2 * MIB);
    let stage = Stage::new(is_paged, Policy::Lazy, config);
    let [a, b] = stage.streams();
    let mut allocated = 0;
    let mut held = Vec::new();
    for size in [1_000, 1 << 20, 5 << 20] {
        // New memory, a free chunk, another stream's memory, refusals.
        for stream in [a, b, a, b] {
            let mut blocks = stage.fill(stream, size, usize::MAX);
            allocated += blocks.len() as u64;
            assert_eq!(counted_blocks(&stage), allocated, "{size} bytes");
            assert!(stage.allocate(stream, 64 << 20).is_none());
            assert_eq!(counted_blocks(&stage), allocated, "a refusal");
            held.extend(blocks.pop());
            blocks.into_iter().for_each(|block| stage.free(block));
        }
    }
    let live = held.iter().map(|block| block.bytes() as u64).sum::<u64>();
    assert_eq!(stage.pool.usage().live, live);
    stage.end(held);
}

#[test]
fn an_allocation_over_segments_is_counted_once() {
    each_allocation_is_counted_once(false);
}

#[test]
fn an_allocation_over_pages_is_counted_once() {
    each_allocation_is_counted_once(true);
}
