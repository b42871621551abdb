//! A seeded generator of random numbers: a failure is reproduced by its seed alone.

/// A stream of numbers that depends on its seed only.
#[derive(Clone, Debug)]
pub(crate) struct Rng(fastrand::Rng);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Returns a number in `0..n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0.usize(..n)
    }

    /// Returns a number in `low..=high`.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        self.0.usize(low..=high)
    }

    /// Returns `true` in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.0.u8(..)
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
