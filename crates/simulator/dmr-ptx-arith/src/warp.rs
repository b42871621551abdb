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
