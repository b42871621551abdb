//! The sums of a tensor core of compute capability 9.0, to the bit: found by comparison with an
//! H200.
//!
//! A step adds a number and products: each term is cut off towards zero below the unit, 2^-[`KEPT`]
//! of the largest term; the sum of these is exact, and rounded once. Here a sum begins at 1.5 *
//! 2^52 units in `f64`, where each addition rounds to the nearest unit. A term made smaller by
//! almost half a unit is so cut off. All in plain loops over eight columns, which the compiler
//! turns into vector instructions. Infinities and NaN stay what they are in this arithmetic.

use super::element::{Element, nearest_half};

/// The bits of a sum below the highest bit of its largest term.
const KEPT: f32 = 25.0;
/// The largest part of a unit below its half that leaves each term of 25 bits below 2^27 units
/// exact.
const ALMOST_HALF: f64 = 0.5 - 1.0 / (1 << 26) as f64;
/// The exponent of zeros: with it, that of a product is below that of any other.
const ZERO: f32 = -2048.0;
/// The least exponent of an `f32`.
const LEAST: f32 = -126.0;

/// Returns the exponent of a value. A subnormal has the least one of its type, with zeros above its
/// significand.
#[inline(always)]
fn exponent(value: f32, least: f32) -> f32 {
    let field = (value.to_bits() >> 23 & 0xff) as i32 as f32 - 127.0;
    let exponent = if field > least { field } else { least };
    if value == 0.0 { ZERO } else { exponent }
}

fn least_exponent(element: Element) -> f32 {
    match element {
        // A tensor core gets 8-bit elements as halves.
        Element::F16 | Element::E4m3 | Element::E5m2 => -14.0,
        _ => LEAST,
    }
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

    /// Rounds the sum of an addition.
    fn nearest(self, value: f64) -> f32 {
        match self {
            Self::Single => value as f32,
            Self::Half => nearest_half(value),
        }
    }
}

/// Returns the `f32` next to a value of at most 33 bits, towards zero; infinity from 2^128 on.
#[inline(always)]
fn towards_zero(value: f64) -> f32 {
    /// The bits of an `f64` below those of a normal `f32`.
    const BELOW: u64 = (1 << 29) - 1;
    let normal = f64::from_bits(value.abs().to_bits() & !BELOW);
    // Added to a subnormal `f32` it puts the last bit where that of a normal one is.
    let least = f64::from_bits((1023 - 126) << 52);
    let base = if normal < least { least } else { 0.0 };
    let size = f64::from_bits((normal + base).to_bits() & !BELOW) - base;
    size.copysign(value) as f32
}

/// Eight values side by side, where vector instructions find them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(16))]
struct Eight<T>([T; 8]);

/// The elements of a factor: their values and exponents.
#[derive(Debug, Default)]
struct Elements {
    values: Vec<f32>,
    exponents: Vec<f32>,
}

impl Elements {
    fn set(&mut self, element: Element, bits: &[u32]) {
        let format = element.format();
        let least = least_exponent(element);
        self.values.resize(bits.len(), 0.0);
        self.exponents.resize(bits.len(), 0.0);
        for (value, &bits) in self.values.iter_mut().zip(bits) {
            *value = format.finite(bits);
        }
        for (to, &value) in self.exponents.iter_mut().zip(&self.values) {
            *to = exponent(value, least);
        }
        if bits.iter().fold(false, |any, &bits| any | format.is_special(bits)) {
            for (value, &bits) in self.values.iter_mut().zip(bits) {
                *value = format.value(bits);
            }
        }
    }
}

/// The factor on the left of a product, row after row.
#[derive(Debug, Default)]
pub(super) struct Left {
    elements: Elements,
    sizes: Vec<f64>,
}

impl Left {
    /// Replaces it by the elements with these bits.
    pub(super) fn set(&mut self, element: Element, bits: &[u32]) {
        self.elements.set(element, bits);
        self.sizes.resize(bits.len(), 0.0);
        for (size, value) in self.sizes.iter_mut().zip(&self.elements.values) {
            *size = f64::from(value.abs());
        }
    }
}

/// The factor on the right of a product, eight columns after eight columns, each row after row.
#[derive(Debug, Default)]
pub(super) struct Right {
    elements: Elements,
    sizes: Vec<Eight<f64>>,
    /// The signs, as the highest bit, and their complements.
    signs: Vec<[Eight<u64>; 2]>,
    exponents: Vec<Eight<f32>>,
}

impl Right {
    /// Replaces it by the elements with these bits.
    pub(super) fn set(&mut self, element: Element, bits: &[u32]) {
        self.elements.set(element, bits);
        let (values, _) = self.elements.values.as_chunks::<8>();
        self.sizes.resize(values.len(), Eight::default());
        self.signs.resize(values.len(), Default::default());
        for (values, (sizes, signs)) in
            values.iter().zip(self.sizes.iter_mut().zip(&mut self.signs))
        {
            for (column, &value) in values.iter().enumerate() {
                let sign = sign_of(value);
                sizes.0[column] = f64::from(value.abs());
                signs[0].0[column] = sign;
                signs[1].0[column] = sign ^ 1 << 63;
            }
        }
        self.exponents.clear();
        let (exponents, _) = self.elements.exponents.as_chunks::<8>();
        self.exponents.extend(exponents.iter().map(|row| Eight(*row)));
    }
}

/// Sums of products, row after row, and what is known of them while they are computed.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) values: Vec<f32>,
    /// The exponents of their largest terms.
    tops: Vec<f32>,
    exact: Vec<f64>,
}

impl Sums {
    /// Replaces them by the elements with these bits.
    pub(super) fn set(&mut self, element: Element, bits: &[u32]) {
        let format = element.format();
        self.values.clear();
        if bits.iter().fold(false, |any, &bits| any | format.is_special(bits)) {
            self.values.extend(bits.iter().map(|&bits| format.value(bits)));
        } else {
            self.values.extend(bits.iter().map(|&bits| format.finite(bits)));
        }
    }
}

/// The factors of sums, and the number of their rows, products and columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors<'a> {
    pub(super) left: &'a Left,
    pub(super) right: &'a Right,
    pub(super) rows: usize,
    pub(super) depth: usize,
    pub(super) columns: usize,
}

impl<'a> Factors<'a> {
    /// Returns the products `from` to `from + depth` of the sums of a row and eight columns.
    #[inline(always)]
    fn eight(self, row: usize, block: usize, from: usize, depth: usize) -> EightFactors<'a> {
        let left = row * self.depth + from;
        let right = (row / self.rows * self.columns / 8 + block) * self.depth + from;
        EightFactors {
            left: self.left.elements.values[left..][..depth].as_chunks().0,
            left_sizes: self.left.sizes[left..][..depth].as_chunks().0,
            left_exponents: self.left.elements.exponents[left..][..depth].as_chunks().0,
            sizes: self.right.sizes[right..][..depth].as_chunks().0,
            signs: self.right.signs[right..][..depth].as_chunks().0,
            right_exponents: self.right.exponents[right..][..depth].as_chunks().0,
        }
    }

    /// Returns the products `from` to `from + depth` of the eight sums around the one at `index`.
    fn around(self, index: usize, from: usize, depth: usize) -> EightFactors<'a> {
        self.eight(index / self.columns, index % self.columns / 8, from, depth)
    }

    /// Adds the products `from` to `from + depth`, 16 or fewer, to each sum in one step. A sum that
    /// is too large is infinite.
    pub(super) fn step(self, sums: &mut Sums, rounding: Sum, from: usize, depth: usize) {
        let Sums { values, tops, exact } = sums;
        tops.clear();
        tops.extend(values.iter().map(|&c| {
            let top = exponent(c, LEAST);
            if top > 2.0 * LEAST { top } else { 2.0 * LEAST }
        }));
        exact.resize(values.len(), 0.0);
        let (c, _) = values.as_chunks::<8>();
        let (tops, _) = tops.as_chunks_mut::<8>();
        let blocks = self.columns / 8;
        for (row, tops) in tops.chunks_exact_mut(blocks).enumerate() {
            for (block, tops) in tops.iter_mut().enumerate() {
                *tops = self.eight(row, block, from, depth).tops(tops);
            }
        }
        let exact_rows = exact.as_chunks_mut::<8>().0.chunks_exact_mut(blocks);
        for (row, exact) in exact_rows.enumerate() {
            for (block, exact) in exact.iter_mut().enumerate() {
                let index = row * blocks + block;
                *exact = self.eight(row, block, from, depth).add(&c[index], &tops[index]);
            }
        }
        let tops = tops.as_flattened();
        // A sum of zeros is negative if all of them are.
        let is_zero =
            |top: f32, c: f32| (top == 2.0 * LEAST) & (c.to_bits() == (-0.0_f32).to_bits());
        let zeros = tops.iter().zip(values.iter()).map(|(&top, &c)| is_zero(top, c));
        if zeros.fold(false, |any, zero| any | zero) {
            for (index, value) in values.iter().enumerate() {
                if is_zero(tops[index], *value) {
                    let factors = self.around(index, from, depth);
                    let terms = (0..depth).map(|k| factors.of(k, index % 8).map(f64::from));
                    exact[index] = terms.fold(f64::from(*value), |sum, [a, b]| sum + a * b);
                }
            }
        }
        let rounded = values.iter_mut().zip(exact.iter());
        match rounding {
            Sum::Single => rounded.for_each(|(value, &exact)| *value = towards_zero(exact)),
            Sum::Half => rounded.for_each(|(value, &exact)| *value = nearest_half(exact)),
        }
    }

    /// Adds 16 or 32 products of 8-bit elements, which are compiled to products of halves: first
    /// those whose place in their register is low (the first half), then those whose place is high;
    /// then C, rounded to nearest.
    pub(super) fn eight_bits(self, sums: &mut Sums, rounding: Sum, c: &mut Vec<f32>) {
        c.clear();
        c.extend_from_slice(&sums.values);
        sums.values.fill(0.0);
        let half = self.depth / 2;
        self.step(sums, rounding, 0, half);
        self.step(sums, rounding, half, half);
        for (sum, &c) in sums.values.iter_mut().zip(c.iter()) {
            *sum = rounding.nearest(f64::from(*sum) + f64::from(c));
        }
    }

    /// Adds four products in `f32`: this shape is compiled to fused multiply-adds, which differ
    /// with the type of D.
    pub(super) fn quad(self, sums: &mut Sums, rounding: Sum) {
        for (index, c) in sums.values.iter_mut().enumerate() {
            let factors = self.around(index, 0, 4);
            let product = |k| {
                let [a, b] = factors.of(k, index % 8);
                a * b
            };
            let fused = |sum: f32, k| {
                let [a, b] = factors.of(k, index % 8);
                a.mul_add(b, sum)
            };
            *c += match rounding {
                Sum::Half => fused(product(0), 1) + fused(product(2), 3),
                Sum::Single => (1..4).fold(product(0), fused),
            };
        }
    }
}

/// The factors of eight sums, those of four products together: of a row, and of eight columns.
#[derive(Clone, Copy)]
struct EightFactors<'a> {
    left: &'a [[f32; 4]],
    left_sizes: &'a [[f64; 4]],
    left_exponents: &'a [[f32; 4]],
    sizes: &'a [[Eight<f64>; 4]],
    signs: &'a [[[Eight<u64>; 2]; 4]],
    right_exponents: &'a [[Eight<f32>; 4]],
}

impl EightFactors<'_> {
    /// Returns the exponents of the largest terms; `tops` has those of C, and at least that of the
    /// least product.
    #[inline(always)]
    fn tops(self, tops: &[f32; 8]) -> [f32; 8] {
        let mut tops = *tops;
        for (left, right) in self.left_exponents.iter().zip(self.right_exponents) {
            for k in 0..4 {
                for (top, &right) in tops.iter_mut().zip(&right[k].0) {
                    let exponent = left[k] + right;
                    *top = if exponent > *top { exponent } else { *top };
                }
            }
        }
        tops
    }

    /// Adds the products, cut off by the largest terms, to `c`.
    #[inline(always)]
    fn add(self, c: &[f32; 8], tops: &[f32; 8]) -> [f64; 8] {
        let unit = tops.map(|top| power_of_two(top - KEPT));
        let start = unit.map(|unit| unit * (1.5 * (1_u64 << 52) as f64));
        let half = unit.map(|unit| unit * ALMOST_HALF);
        let mut sums = start;
        for (((sum, half), c), sign) in sums.iter_mut().zip(half).zip(c).zip(c.map(sign_of)) {
            *sum += with_sign(f64::from(c.abs()) - half, sign);
        }
        let left = self.left.iter().zip(self.left_sizes);
        for ((left, left_sizes), (sizes, signs)) in left.zip(self.sizes.iter().zip(self.signs)) {
            for k in 0..4 {
                let signs = &signs[k][usize::from(left[k].is_sign_negative())].0;
                for column in 0..8 {
                    let size = left_sizes[k] * sizes[k].0[column] - half[column];
                    sums[column] += with_sign(size, signs[column]);
                }
            }
        }
        for (sum, start) in sums.iter_mut().zip(start) {
            *sum -= start;
        }
        sums
    }

    /// Returns the factors of product `k` of a column.
    fn of(self, k: usize, column: usize) -> [f32; 2] {
        let four = k / 4;
        let k = k % 4;
        let right = with_sign(self.sizes[four][k].0[column], self.signs[four][k][0].0[column]);
        [self.left[four][k], right as f32]
    }
}

/// Returns 2 to the power of `exponent`, which is that of a normal `f64`.
#[inline(always)]
fn power_of_two(exponent: f32) -> f64 {
    // The sum has the exponent, as the bits say it, in its lowest bits.
    let sum = f64::from(exponent) + ((1_u64 << 52) + 1023) as f64;
    f64::from_bits(sum.to_bits() << 52)
}

/// Returns the sign of a value, as the highest bit of an `f64`.
#[inline(always)]
fn sign_of(value: f32) -> u64 {
    u64::from(value.to_bits() >> 31) << 63
}

/// Negates a value if `sign` has the highest bit.
#[inline(always)]
fn with_sign(value: f64, sign: u64) -> f64 {
    f64::from_bits(value.to_bits() ^ sign)
}
