//! The 32 lanes of a warp, and of one of its registers.

/// The number of lanes of a warp.
pub const WARP: usize = 32;

/// One register of a warp: the value of each lane, zero-extended to 64 bits.
///
/// A `.f32` value is its bits; an `.f16x2` value is two halves, the first in the low bits; a
/// predicate is 0 or 1. A `.b128` register is two of these, the low half first.
pub type Lanes = [u64; WARP];

/// A set of lanes: bit `n` is lane `n`.
pub type Mask = u32;

/// Returns the numbers of the lanes of `mask`, lowest first.
#[inline]
pub fn lanes_of(mask: Mask) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = rest.trailing_zeros() as usize;
        rest &= rest.wrapping_sub(1);
        (lane < WARP).then_some(lane)
    })
}
