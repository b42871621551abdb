//! Floating-point arithmetic in software by another library, in terms of bits; random and special
//! values of a format.

use rustc_apfloat::ieee::{BFloat, Double, Half, Single};
use rustc_apfloat::{Float, FloatConvert, Round};

/// The rounding modes with the words of PTX.
pub(super) const MODES: [(&str, Round); 4] = [
    ("rn", Round::NearestTiesToEven),
    ("rz", Round::TowardZero),
    ("rm", Round::TowardNegative),
    ("rp", Round::TowardPositive),
];

/// A format of the other library, with what PTX says about it.
pub(super) trait Reference: Float + FloatConvert<Double> {
    const WIDTH: u32;
    const FRACTION: u32;
    const CANONICAL: u64;

    fn of(bits: u64) -> Self {
        Self::from_bits(u128::from(bits))
    }

    /// Returns the bits; NaN is canonical.
    fn canonical(self) -> u64 {
        if self.is_nan() { Self::CANONICAL } else { self.to_bits() as u64 }
    }

    /// Returns a zero of the same sign instead of a subnormal.
    fn flushed(self) -> Self {
        let zero = if self.is_negative() { -Self::ZERO } else { Self::ZERO };
        if self.is_denormal() { zero } else { self }
    }

    /// Returns the value clamped to 0 and 1.
    fn saturated(self) -> Self {
        let one = Self::from_u128(1).value;
        if self.is_nan() || self.is_negative() {
            Self::ZERO
        } else if self > one {
            one
        } else {
            self
        }
    }

    /// Returns bits: special values, values near each other, any.
    fn random(random: &mut fastrand::Rng) -> u64 {
        let width = Self::WIDTH;
        let mask = u64::MAX >> (64 - width);
        let infinity = Self::INFINITY.to_bits() as u64;
        let one = Self::from_u128(1).value.to_bits() as u64;
        let sign = random.u64(..2) << (width - 1);
        let magnitude = match random.u32(..16) {
            0 => [0, 1, 2, infinity, infinity + 1, infinity - 1, mask >> 1, one][random.usize(..8)],
            1 => (1 << Self::FRACTION) - 2 + random.u64(..4),
            // Near one: sums cancel, products are near halfway cases.
            2..=4 => {
                one + (random.u64(..8) << (Self::FRACTION - 2)) - (1 << Self::FRACTION)
                    + random.u64(..4)
            }
            5 | 6 => one - (4 << Self::FRACTION) + random.u64(..8 << Self::FRACTION),
            // Few bits in the fraction.
            7 | 8 => random.u64(..) & (mask >> 1) & !((1 << (Self::FRACTION / 2)) - 1),
            // Subnormal, or little more.
            9 | 10 => random.u64(..4 << Self::FRACTION),
            _ => random.u64(..) & (mask >> 1),
        };
        sign | magnitude & (mask >> 1)
    }
}

impl Reference for Half {
    const WIDTH: u32 = 16;
    const FRACTION: u32 = 10;
    const CANONICAL: u64 = 0x7fff;
}

impl Reference for BFloat {
    const WIDTH: u32 = 16;
    const FRACTION: u32 = 7;
    const CANONICAL: u64 = 0x7fff;
}

impl Reference for Single {
    const WIDTH: u32 = 32;
    const FRACTION: u32 = 23;
    const CANONICAL: u64 = 0x7fff_ffff;
}

impl Reference for Double {
    const WIDTH: u32 = 64;
    const FRACTION: u32 = 52;
    const CANONICAL: u64 = 0xfff8_0000_0000_0000;
}

/// Computes `add`, `sub`, `mul`, `div`, `rcp` or `fma`.
pub(super) fn basic<F: Reference>(name: &str, [a, b, c]: [F; 3], round: Round) -> F {
    match name {
        "add" => a.add_r(b, round).value,
        "sub" => a.sub_r(b, round).value,
        "mul" => a.mul_r(b, round).value,
        "div" => a.div_r(b, round).value,
        "rcp" => F::from_u128(1).value.div_r(a, round).value,
        "fma" | "mad" => a.mul_add_r(b, c, round).value,
        _ => panic!("{name}"),
    }
}

/// Computes an operation with `.ftz`, of operands that are flushed: a result is a zero if it is
/// below the least normal value when it is rounded as if exponents had no bound.
pub(super) fn flushing<F: Reference>(name: &str, [a, b, c]: [F; 3], round: Round) -> F {
    let result = basic(name, [a, b, c], round);
    let least = F::smallest_normalized();
    if result.abs() != least || matches!(name, "add" | "sub") {
        return result.flushed();
    }
    // The same computation in a range where it is not near subnormal values.
    let scaled = match name {
        "rcp" => [a.scalbn(-4), b, c],
        "div" => [a, b.scalbn(-4), c],
        _ if a.abs() < b.abs() => [a.scalbn(4), b, c.scalbn(4)],
        _ => [a, b.scalbn(4), c.scalbn(4)],
    };
    let scaled = basic(name, scaled, round);
    let zero = if result.is_negative() { -F::ZERO } else { F::ZERO };
    if scaled.abs() < least.scalbn(4) { zero } else { result }
}
