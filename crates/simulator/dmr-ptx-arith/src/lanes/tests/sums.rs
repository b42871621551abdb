//! The sums of products of floating-point matrices, with numbers of all kinds, against sums of
//! 128-bit integers.

use super::formulas::{self as of, Formula, Shape};
use super::{ALL, Random, eval};
use crate::Lanes;

/// A type of elements: the bits of its exponent and mantissa, and of the register's part that has
/// them.
#[derive(Clone, Copy, PartialEq)]
struct Kind {
    exponent: u32,
    mantissa: u32,
    width: usize,
}

const F16: Kind = Kind { exponent: 5, mantissa: 10, width: 16 };
const BF16: Kind = Kind { exponent: 8, mantissa: 7, width: 16 };
const TF32: Kind = Kind { exponent: 8, mantissa: 10, width: 32 };
const E4M3: Kind = Kind { exponent: 4, mantissa: 3, width: 8 };
const E5M2: Kind = Kind { exponent: 5, mantissa: 2, width: 8 };
const F32: Kind = Kind { exponent: 8, mantissa: 23, width: 32 };

impl Kind {
    fn sign(self) -> u32 {
        1 << (self.exponent + self.mantissa)
    }

    /// Returns the value of the bits; `None` if it is infinite or NaN.
    fn value(self, bits: u32) -> f64 {
        let mantissa = bits & ((1 << self.mantissa) - 1);
        let field = bits >> self.mantissa & ((1 << self.exponent) - 1);
        let sign = if bits & self.sign() == 0 { 1.0 } else { -1.0 };
        let largest = (1 << self.exponent) - 1;
        if self == E4M3 {
            if bits & 0x7f == 0x7f {
                return f64::NAN;
            }
        } else if field == largest {
            return if mantissa == 0 { sign * f64::INFINITY } else { f64::NAN };
        }
        let bias = (1 << (self.exponent - 1)) - 1;
        let hidden = if field == 0 { 0 } else { 1 << self.mantissa };
        let exponent = field.max(1) as i32 - bias - self.mantissa as i32;
        sign * f64::from(hidden | mantissa) * 2.0_f64.powi(exponent)
    }

    /// Returns the least exponent that a tensor core has for it.
    fn least(self) -> i32 {
        if self.exponent == 8 { -126 } else { -14 }
    }

    /// Returns the bits of a random element, of a style.
    fn random(self, style: u64, random: &mut Random) -> u32 {
        let largest = (1 << self.exponent) - 2;
        let bits = random.next() as u32 & (2 * (self.sign() - 1) + 1);
        let bias = largest / 2;
        let field = |low: u32, high: u32| {
            let field = low + bits.rotate_left(7) % (high - low + 1);
            bits & !((largest + 1) << self.mantissa) | field << self.mantissa
        };
        match style {
            0 => bits,
            1 => field(bias - 3, bias + 3),
            2 => field(0, 2),
            3 => field(largest - 3, largest),
            4 if bits.count_ones().is_multiple_of(2) => bits & self.sign(),
            4 => field(bias - 6, bias + 2),
            _ => field(0, largest),
        }
    }
}

/// Returns exponent and significand of a finite value.
fn split(value: f64, least: i32) -> (i32, i128) {
    if value == 0.0 {
        return (least, 0);
    }
    let exponent = ((value.abs().to_bits() >> 52) as i32 - 1023).max(least);
    // Below 2^24: a product fits.
    (exponent, (value * 2.0_f64.powi(23 - exponent)) as i128)
}

/// Returns the sum of a step as the comment of `lanes::tensor` has it, in integers; NaN or infinite
/// in `f64`.
fn step(c: f64, terms: &[(f64, f64)], least: i32) -> f64 {
    let plain = terms.iter().fold(c, |sum, (a, b)| sum + a * b);
    if !plain.is_finite() || terms.iter().any(|(a, b)| !a.is_finite() || !b.is_finite()) {
        return plain;
    }
    // Exponents, and significands with 46 bits below the point.
    let c = split(c, -126);
    let mut all = vec![(c.0, c.1 << 23)];
    all.extend(terms.iter().map(|&(a, b)| {
        let a = split(a, least);
        let b = split(b, least);
        (a.0 + b.0, a.1 * b.1)
    }));
    all.retain(|term| term.1 != 0);
    let Some(top) = all.iter().map(|term| term.0).max() else { return plain };
    let unit = |&(exponent, significand): &(i32, i128)| {
        let shift = (46 - 25 + top - exponent).min(127) as u32;
        significand.signum() * (significand.abs() >> shift)
    };
    all.iter().map(unit).sum::<i128>() as f64 * 2.0_f64.powi((top - 25).max(-400))
}

/// Rounds a sum to an `f32`, towards zero.
fn cut(value: f64) -> f64 {
    let nearest = value as f32;
    if !value.is_finite() || f64::from(nearest).abs() <= value.abs() {
        return f64::from(nearest);
    }
    if nearest.is_infinite() && value.abs() >= 2.0_f64.powi(128) {
        return f64::from(nearest);
    }
    f64::from(f32::from_bits(nearest.to_bits() - 1))
}

/// Rounds a sum to an `f16`, to the nearest, the even one of two.
fn half(value: f64) -> f64 {
    if !value.is_finite() {
        return value;
    }
    let exponent = ((value.abs().to_bits() >> 52) as i32 - 1023).max(-14);
    let size = (value.abs() * 2.0_f64.powi(10 - exponent)).round_ties_even();
    let size = size * 2.0_f64.powi(exponent - 10);
    (if size >= 65536.0 { f64::INFINITY } else { size }).copysign(value)
}

fn bits(value: f64, kind: Kind) -> u64 {
    if kind == F32 {
        return u64::from(if value.is_nan() { 0x7fff_ffff } else { (value as f32).to_bits() });
    }
    if value.is_nan() {
        return 0x7fff;
    }
    let size = half(value.abs());
    let mut low = 0;
    let mut above = 0x7c01;
    while above - low > 1 {
        let middle = u32::midpoint(low, above);
        if F16.value(middle) <= size { low = middle } else { above = middle }
    }
    u64::from(low) | if value.is_sign_negative() { 0x8000 } else { 0 }
}

/// A form of `mma`: the kinds of D, A, B and C.
struct Form {
    name: &'static str,
    shape: Shape,
    kinds: [Kind; 4],
}

/// Returns the bits of a matrix, row after row.
fn matrix(rows: usize, columns: usize, kind: Kind, random: &mut Random) -> Vec<u32> {
    let style = random.next() % 6;
    (0..rows * columns).map(|_| kind.random(style, random)).collect()
}

/// Writes a matrix of `columns` columns into registers.
fn spread(elements: &[u32], columns: usize, kind: Kind, formula: Formula) -> Vec<Lanes> {
    let count = elements.len() / 32;
    let each = kind.width;
    let mut registers = vec![[0; 32]; count * each / 32];
    for lane in 0..32 {
        for i in 0..count {
            let (row, column) = formula(lane, i);
            // The lower bits of tf32 are ignored.
            let bits = elements[row * columns + column] << if kind == TF32 { 13 } else { 0 };
            let register: &mut Lanes = &mut registers[i * each / 32];
            register[lane] |= u64::from(bits) << (i * each % 32);
        }
    }
    registers
}

impl Form {
    fn check(&self, random: &mut Random) {
        let Shape { m, n, k: depth, .. } = self.shape;
        let [d_kind, a_kind, b_kind, c_kind] = self.kinds;
        let mut a = matrix(m, depth, a_kind, random);
        let mut b = matrix(depth, n, b_kind, random);
        let mut c = matrix(m, n, c_kind, random);
        if random.next().is_multiple_of(4) {
            // Products that cancel each other, or almost do.
            for at in (1..a.len()).step_by(2) {
                a[at] = a[at - 1] ^ a_kind.sign() ^ (random.next() as u32 & 1);
            }
            for k in (1..depth).step_by(2) {
                b.copy_within((k - 1) * n..k * n, k * n);
            }
        }
        for (matrix, kind) in [(&mut a, a_kind), (&mut b, b_kind), (&mut c, c_kind)] {
            if random.next().is_multiple_of(16) {
                // An infinity or NaN, and another one.
                for _ in 0..2 {
                    let at = random.next() as usize % matrix.len();
                    let nan =
                        if random.next().is_multiple_of(4) { kind.random(0, random) } else { 0 };
                    let sign = kind.sign() & random.next() as u32;
                    matrix[at] = nan | sign | (kind.sign() - (1 << kind.mantissa));
                }
            }
        }
        let mut sources = spread(&a, depth, a_kind, self.shape.a);
        sources.extend(spread(&b, n, b_kind, self.shape.b));
        sources.extend(spread(&c, n, c_kind, self.shape.c));
        let (out, _) = eval(&format!("mma.sync.aligned.{}", self.name), &sources, ALL, ALL);
        let is_half = (c_kind, d_kind) == (F16, F16);
        let round = if is_half { half } else { cut };
        let least = a_kind.least();
        for lane in 0..32 {
            for i in 0..m * n / 32 {
                let (row, column) = (self.shape.c)(lane, i);
                let term =
                    |k: usize| (a_kind.value(a[row * depth + k]), b_kind.value(b[k * n + column]));
                let c = c_kind.value(c[row * n + column]);
                let all: Vec<_> = (0..depth).map(term).collect();
                let sum = if a_kind.width == 8 {
                    let place = |high: bool| {
                        (0..depth)
                            .filter(move |k| (k % 4 >= 2) == high)
                            .map(term)
                            .collect::<Vec<_>>()
                    };
                    let low = round(step(0.0, &place(false), least));
                    let sum = round(step(low, &place(true), least)) + c;
                    if is_half { half(sum) } else { f64::from(sum as f32) }
                } else {
                    round(step(c, &all, least))
                };
                let at = i * d_kind.width;
                let register: &Lanes = &out[at / 32];
                let found = register[lane] >> (at % 32) & (u64::MAX >> (64 - d_kind.width));
                let expected = bits(sum, d_kind);
                assert_eq!(found, expected, "{}: c {c:e}, {all:?}", self.name);
            }
        }
    }
}

#[test]
fn sums_of_numbers_of_all_kinds_are_cut_off_and_rounded_as_exact_ones() {
    let forms = [
        ("m16n8k16.row.col.f32.f16.f16.f32", of::F16_16X8X16, [F32, F16, F16, F32]),
        ("m16n8k16.row.col.f16.f16.f16.f16", of::F16_16X8X16, [F16, F16, F16, F16]),
        ("m16n8k16.row.col.f32.f16.f16.f16", of::F16_16X8X16, [F32, F16, F16, F16]),
        ("m16n8k8.row.col.f16.f16.f16.f32", of::F16_16X8X8, [F16, F16, F16, F32]),
        ("m16n8k16.row.col.f32.bf16.bf16.f32", of::F16_16X8X16, [F32, BF16, BF16, F32]),
        ("m16n8k8.row.col.f32.bf16.bf16.f32", of::F16_16X8X8, [F32, BF16, BF16, F32]),
        ("m16n8k4.row.col.f32.tf32.tf32.f32", of::TF32_16X8X4, [F32, TF32, TF32, F32]),
        ("m16n8k8.row.col.f32.tf32.tf32.f32", of::TF32_16X8X8, [F32, TF32, TF32, F32]),
        ("m16n8k32.row.col.f32.e4m3.e5m2.f32", of::S8_16X8X32, [F32, E4M3, E5M2, F32]),
        ("m16n8k16.row.col.f16.e5m2.e4m3.f16", of::S8_16X8X16, [F16, E5M2, E4M3, F16]),
    ];
    let forms = forms.map(|(name, shape, kinds)| Form { name, shape, kinds });
    let mut random = Random(1);
    for _ in 0..800 {
        forms.iter().for_each(|form| form.check(&mut random));
    }
}
