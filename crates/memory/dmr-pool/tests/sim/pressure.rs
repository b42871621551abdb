//! A pool that is nearly full: chunks of mapped pages change hands, and pages stay where they are.

use crate::support::{Upstream, pool_over, rig};
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, ResourceError};
use dmr_pool::{PoolConfig, StepCounts};
use dmr_programs::random::Random;
use dmr_sim::Policy;

const LIMIT: u64 = 2 << 30;
const CALLS: u64 = 20_000;

/// Allocates on sixteen streams in turn, with up to four fifths of the limit live, and returns how
/// often each step of the ladder served, and how many calls were refused.
fn press(config: PoolConfig) -> (StepCounts, u64) {
    let rig = rig(Policy::Eager, 1, 2 * LIMIT);
    let pool = pool_over(Upstream::Virtual, &rig, config.with_maximum_size(LIMIT));
    let leases: Vec<_> = (0..16).map(|_| rig.stream()).collect();
    let mut random = Random::new(1);
    let mut held: Vec<DeviceBlock> = Vec::new();
    let mut live = 0;
    let mut refused = 0;
    for _ in 0..CALLS {
        let bytes = (4096 << random.below(13)) + 256 * random.below(4096);
        while live + bytes > LIMIT / 5 * 4 {
            let block = held.swap_remove(random.below(held.len() as u64) as usize);
            live -= block.bytes() as u64;
            pool.deallocate(block).unwrap();
        }
        let stream = leases[random.below(16) as usize].id();
        match pool.allocate(bytes as usize, stream, AllocTag::UNTAGGED) {
            Ok(block) => {
                live += bytes;
                held.push(block);
            }
            Err(ResourceError::OutOfMemory { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    for block in held {
        pool.deallocate(block).unwrap();
    }
    (pool.stats().steps, refused)
}

#[test]
fn chunks_are_borrowed_before_pages_move() {
    // With the page sizes of the modes, not the small ones of other tests.
    let fast = PoolConfig::fast().with_page_size(16 << 20);
    for (config, most_moved) in [(fast, 2), (PoolConfig::compact(), 20)] {
        let (steps, refused) = press(config);
        let thousands = CALLS / 1000;
        let lent = steps.lent_ready + steps.lent_waiting;
        assert!(steps.pages_moved <= most_moved * thousands, "{steps:?}");
        assert!(lent >= 5 * steps.pages_moved, "{steps:?}");
        assert!(refused <= CALLS / 20, "{refused} refused: {steps:?}");
    }
}
