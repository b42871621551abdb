//! What a program draws: numbers, and how its pool is made.

use dmr_pool::PoolConfig;

use super::MIB;

/// SplitMix64.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A pool, and how large its blocks are. Small enough to be full now and then; where sizes are large, it is the pool's slack that ends.
pub(crate) fn config(rng: &mut Rng) -> (PoolConfig, u64) {
    let config = PoolConfig::fast().with_growth(2 * MIB);
    let (mut config, scale) = match rng.below(4) {
        0 => (config.with_growth(32 * MIB), 64),
        limited => (config.with_maximum_size(2 * MIB * limited), 1),
    };
    if rng.one_in(3) {
        config = config.with_apart_from(300_000 * scale);
    }
    if rng.one_in(4) {
        config = config.with_largest_pooled((500_000 * scale) as usize);
    }
    if rng.one_in(4) {
        config = config.with_release_threshold(2 * MIB * scale);
    }
    if rng.one_in(4) {
        config = config.with_initial_size(2 * MIB);
    }
    (config, scale)
}
