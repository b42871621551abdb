//! [`SplitMix64`]: the random numbers of sequences that have a definition.

/// Sebastiano Vigna's SplitMix64.
///
/// The programs of dmr-programs, by number, and the benchmarks' W3, which the peers' programs draw
/// as well, are defined by it. A crate may change its generator with a new version, and with it
/// what a number means.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Makes a generator that starts at `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
