//! Contention decays in a pool that is used.

use dmr_core::DeviceMemoryResource;
use dmr_sim::Policy;

use super::{MIB, Stage};
use crate::PoolConfig;

fn contention_is_forgotten(is_paged: bool) {
    let stage = Stage::new(is_paged, Policy::Eager, PoolConfig::fast().with_page_size(2 * MIB));
    let [a, _] = stage.streams();
    (0..100).for_each(|_| stage.pool.slack.count_conflict());
    let mut allocations = 0;
    while stage.pool.slack.is_contended() {
        allocations += 1;
        assert!(allocations < 2_000, "contention stays");
        let block = stage.allocate(a, 64 << 20).unwrap();
        stage.free(block);
        // The next one misses.
        stage.pool.trim_to(0).unwrap();
    }
    assert!(allocations > 100, "{allocations} allocations were enough");
    stage.end(Vec::new());
}

#[test]
fn contention_is_forgotten_over_segments() {
    contention_is_forgotten(false);
}

#[test]
fn contention_is_forgotten_over_pages() {
    contention_is_forgotten(true);
}
