//! A stream that lives on other streams' memory is given pages of its own.

use dmr_sim::Policy;

use super::{MIB, Stage};
use crate::PoolConfig;

/// All of the pool's pages are in the arena of one stream, free; the other one asks for many small
/// blocks.
#[test]
fn a_stream_that_allocates_much_of_another_ones_memory_is_given_a_page() {
    let config = PoolConfig::compact().with_maximum_size(64 * MIB).with_page_size(2 * MIB);
    let stage = Stage::new(true, Policy::Eager, config);
    let [a, b] = stage.streams();
    for block in stage.fill(a, 2 << 20, usize::MAX) {
        stage.free(block);
    }
    assert_eq!(stage.pool.stats().reserved, 64 * MIB);
    let held = stage.fill(b, 1 << 12, 1000);
    assert_eq!(held.len(), 1000);
    let steps = stage.pool.stats().steps;
    let lent = steps.lent_ready + steps.lent_waiting;
    assert!(lent < 150, "most blocks are of its own pages: {steps:?}");
    assert!((1..=4).contains(&steps.pages_moved), "{steps:?}");
    stage.end(held);
}
