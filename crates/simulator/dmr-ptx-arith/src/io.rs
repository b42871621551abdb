//! The operands of one evaluation, and the loops over the lanes of a mask.

use crate::{Lanes, Mask, WARP};

/// A source that the instruction does not have.
static ZERO: Lanes = [0; WARP];

/// The sources, results and mask of one evaluation.
pub(super) struct Io<'a> {
    sources: [&'a Lanes; 6],
    /// The number of sources that the instruction has.
    pub(super) count: usize,
    result: &'a mut Lanes,
    second: &'a mut Lanes,
    mask: Mask,
}

/// Calls `step` for each lane of `mask`: in a plain loop where the mask is full.
#[inline(always)]
fn for_lanes(mask: Mask, mut step: impl FnMut(usize)) {
    if mask == Mask::MAX {
        for lane in 0..WARP {
            step(lane);
        }
        return;
    }
    let mut rest = mask;
    while rest != 0 {
        step(rest.trailing_zeros() as usize % WARP);
        rest &= rest - 1;
    }
}

impl<'a> Io<'a> {
    pub(super) fn new(
        sources: &[&'a Lanes],
        result: &'a mut Lanes,
        second: &'a mut Lanes,
        mask: Mask,
    ) -> Self {
        let mut all = [&ZERO; 6];
        for (place, source) in all.iter_mut().zip(sources) {
            *place = source;
        }
        Self { sources: all, count: sources.len(), result, second, mask }
    }

    /// Computes the result from the first source.
    #[inline(always)]
    pub(super) fn one(&mut self, f: impl Fn(u64) -> u64) {
        let [a, ..] = self.sources;
        for_lanes(self.mask, |lane| self.result[lane] = f(a[lane]));
    }

    /// Computes the result from the first two sources.
    #[inline(always)]
    pub(super) fn two(&mut self, f: impl Fn(u64, u64) -> u64) {
        let [a, b, ..] = self.sources;
        for_lanes(self.mask, |lane| self.result[lane] = f(a[lane], b[lane]));
    }

    /// Computes the result from the first three sources.
    #[inline(always)]
    pub(super) fn three(&mut self, f: impl Fn(u64, u64, u64) -> u64) {
        let [a, b, c, ..] = self.sources;
        for_lanes(self.mask, |lane| self.result[lane] = f(a[lane], b[lane], c[lane]));
    }

    /// Computes the result from the first four sources.
    #[inline(always)]
    pub(super) fn four(&mut self, f: impl Fn(u64, u64, u64, u64) -> u64) {
        let [a, b, c, d, ..] = self.sources;
        for_lanes(self.mask, |lane| self.result[lane] = f(a[lane], b[lane], c[lane], d[lane]));
    }

    /// Computes two results from all the sources of a lane.
    #[inline(always)]
    pub(super) fn both(&mut self, f: impl Fn([u64; 6]) -> (u64, u64)) {
        let sources = self.sources;
        for_lanes(self.mask, |lane| {
            (self.result[lane], self.second[lane]) = f(sources.map(|source| source[lane]));
        });
    }

    /// Computes the result from the first three sources and a flag of the lane, which `f` returns
    /// changed.
    #[inline(always)]
    pub(super) fn three_with_flag(
        &mut self,
        flags: &mut Mask,
        f: impl Fn(u64, u64, u64, bool) -> (u64, bool),
    ) {
        let [a, b, c, ..] = self.sources;
        let mut all = *flags;
        for_lanes(self.mask, |lane| {
            let (result, flag) = f(a[lane], b[lane], c[lane], all >> lane & 1 != 0);
            self.result[lane] = result;
            all = all & !(1 << lane) | u32::from(flag) << lane;
        });
        *flags = all;
    }
}
