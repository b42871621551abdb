//! The random numbers that programs are drawn from: those of a seed are the same in every version.

use dmr_testkit::SplitMix64;

/// A generator of random numbers.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// Makes a generator that starts at `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }

    /// Returns `true` once in `n` times on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of the values.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}
