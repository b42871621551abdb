//! The sums of a tensor core of compute capability 9.0, to the bit: found by comparison with an H200.

use super::element::Element;

/// The bits of a sum below the highest bit of its largest term.
const KEPT: i32 = 25;
/// The fraction bits of a factor's significand.
const FRACTION: i32 = 10;

/// An element of a factor: `significand * 2^(exponent - FRACTION)`, if it is finite.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Factor {
    pub(super) value: f64,
    exponent: i32,
    significand: i64,
}

impl Factor {
    /// Splits the value of an element. A subnormal has the exponent of the least normal number, and zeros above its significand.
    pub(super) fn of(element: Element, value: f64) -> Self {
        let least = match element {
            // A tensor core gets 8-bit elements as halves.
            Element::F16 | Element::E4m3 | Element::E5m2 => -14,
            _ => -126,
        };
        let (exponent, significand) = split(value, least, FRACTION);
        Self { value, exponent, significand }
    }
}

/// Returns exponent and signed significand of a finite value, with `fraction` fraction bits.
fn split(value: f64, least: i32, fraction: i32) -> (i32, i64) {
    let bits = value.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1023;
    let all = (bits & ((1 << 52) - 1) | 1 << 52) as i64;
    let (exponent, shift) =
        if exponent < least { (least, least - exponent) } else { (exponent, 0) };
    let significand = all >> (52 - fraction + shift).min(63);
    (exponent, if value < 0.0 { -significand } else { significand })
}

/// A type of sums, `f32` or `f16`: the value that a step's sum is rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sum {
    /// Rounded towards zero.
    Single,
    /// Rounded to nearest.
    Half,
}

impl Sum {
    /// Returns the type of the sums for the elements of C and D.
    pub(super) fn of(c: Element, d: Element) -> Self {
        if (c, d) == (Element::F16, Element::F16) { Self::Half } else { Self::Single }
    }

    /// Rounds the sum of a step.
    fn step(self, value: f64) -> f32 {
        match self {
            Self::Single => towards_zero(value),
            Self::Half => nearest_half(value),
        }
    }

    /// Rounds the sum of an addition.
    fn nearest(self, value: f64) -> f32 {
        match self {
            Self::Single => value as f32,
            Self::Half => nearest_half(value),
        }
    }
}

fn nearest_half(value: f64) -> f32 {
    Element::F16.to_f64(Element::F16.round(value)) as f32
}

/// Adds `c` and the products in one step: each term is cut off below 2^-[`KEPT`] of the largest one, the sum of these
/// is exact, and rounded once. A sum that is too large is infinite.
pub(super) fn step(
    c: f32,
    sum: Sum,
    factors: impl Iterator<Item = (Factor, Factor)> + Clone,
) -> f32 {
    let (c_exponent, c_significand) = split(f64::from(c), -126, 23);
    let mut top = if c == 0.0 { i32::MIN } else { c_exponent };
    let mut finite = c.is_finite();
    for (a, b) in factors.clone() {
        finite &= a.value.is_finite() && b.value.is_finite();
        if a.significand != 0 && b.significand != 0 {
            top = top.max(a.exponent + b.exponent);
        }
    }
    if !finite || top == i32::MIN {
        // NaN, infinite or a zero: the order does not matter.
        return factors.fold(f64::from(c), |sum, (a, b)| sum + a.value * b.value) as f32;
    }
    let mut all = cut(c_significand << (KEPT - 23), top - c_exponent);
    for (a, b) in factors {
        let product = a.significand * b.significand;
        if product != 0 {
            all += cut(product << (KEPT - 2 * FRACTION), top - a.exponent - b.exponent);
        }
    }
    sum.step(all as f64 * f64::from_bits(((1023 + top - KEPT) as u64) << 52))
}

/// Divides by a power of two, towards zero.
fn cut(x: i64, shift: i32) -> i64 {
    let size = x.abs() >> shift.clamp(0, 63);
    if x < 0 { -size } else { size }
}

fn towards_zero(value: f64) -> f32 {
    let nearest = value as f32;
    if nearest.is_finite() && f64::from(nearest).abs() > value.abs()
        || nearest.is_infinite() && value.abs() < f64::from_bits((1023 + 128) << 52)
    {
        f32::from_bits(nearest.to_bits() - 1)
    } else {
        nearest
    }
}

/// Adds `c` and 16 or 32 products of 8-bit elements, which are compiled to products of halves: those whose place in their
/// register is low, then those whose place is high; then `c`, rounded to nearest.
pub(super) fn eight_bits(
    c: f32,
    sum: Sum,
    depth: usize,
    factors: impl Fn(usize) -> (Factor, Factor),
) -> f32 {
    let places = |high: bool| {
        let factors = &factors;
        (0..depth).filter(move |k| (k % 4 >= 2) == high).map(factors)
    };
    let all = step(step(0.0, sum, places(false)), sum, places(true));
    sum.nearest(f64::from(all) + f64::from(c))
}

/// Adds `c` and four products in `f32`: this shape is compiled to fused multiply-adds, which differ with the type of D.
pub(super) fn quad(c: f32, sum: Sum, factors: impl Fn(usize) -> (Factor, Factor)) -> f32 {
    let product = |k: usize| {
        let (a, b) = factors(k);
        a.value as f32 * b.value as f32
    };
    let fused = |sum: f32, k: usize| {
        let (a, b) = factors(k);
        (a.value as f32).mul_add(b.value as f32, sum)
    };
    match sum {
        Sum::Half => fused(product(0), 1) + fused(product(2), 3) + c,
        Sum::Single => (1..4).fold(product(0), fused) + c,
    }
}
