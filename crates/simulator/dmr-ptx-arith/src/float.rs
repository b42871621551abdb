//! Floating-point `add`, `sub`, `mul`, `fma`, `mad`, `div`, `rcp`, `sqrt`, rounded as IEEE 754
//! demands, on every format.

use std::cell::Cell;

use super::exact::{BF16, Basic, F16, F32, F64, Format, rounded};
use super::io::Io;
use super::modifiers::{Modifiers, Rounding, flag};
use super::pairs::{spread2, spread3};
use super::{Arith, Operands, Operation};
use dmr_ptx_syntax::Type;

/// A rounded operation on one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    basic: Basic,
    /// `rcp`: the division of 1.
    reciprocal: bool,
    format: Format,
    pair: bool,
    rounding: Rounding,
    ftz: bool,
    sat: bool,
    relu: bool,
}

/// Returns the format of a type, and whether the type is a pair of such values.
pub(super) fn format_of(ty: Type) -> Option<(Format, bool)> {
    Some(match ty {
        Type::F16 => (F16, false),
        Type::F16x2 => (F16, true),
        Type::Bf16 => (BF16, false),
        Type::Bf16x2 => (BF16, true),
        Type::F32 => (F32, false),
        Type::F32x2 => (F32, true),
        Type::F64 => (F64, false),
        _ => return None,
    })
}

/// Decodes an instruction that rounds exactly.
pub(super) fn decode(words: &Modifiers<'_>) -> Result<Arith, String> {
    let mut words = *words;
    let ty = words.one_type()?;
    let Some((format, pair)) = format_of(ty) else {
        return words.wrong_type(ty);
    };
    let rounding = words.rounding.take();
    let (basic, count) = match words.name {
        "add" => (Basic::Add, 2),
        "sub" => (Basic::Sub, 2),
        "mul" => (Basic::Mul, 2),
        "mad" | "fma" => (Basic::Fma, 3),
        "div" => (Basic::Div, 2),
        "rcp" => (Basic::Div, 1),
        _ => (Basic::Sqrt, 1),
    };
    let half = format == F16 || format == BF16;
    // The ISA demands a mode for `mad.f32` too, but its assembler accepts the instruction without
    // one.
    if basic == Basic::Fma && rounding.is_none() && (words.name, ty) != ("mad", Type::F32) {
        return Err(format!("{} needs a rounding mode", words.name));
    }
    if half && !matches!(rounding, None | Some(Rounding::Nearest))
        || rounding == Some(Rounding::NearestAway)
    {
        return Err(format!("{} does not have this rounding mode for {ty:?}", words.name));
    }
    let few = matches!(basic, Basic::Div | Basic::Sqrt);
    if few && (half || pair) || half && words.name == "mad" {
        return words.wrong_type(ty);
    }
    let mut allowed = 0;
    if format == F32 || format == F16 {
        allowed |= flag::FTZ;
        if !few && ty != Type::F32x2 {
            allowed |= flag::SAT;
        }
    }
    if half && basic == Basic::Fma {
        allowed |= flag::RELU;
    }
    words.only(allowed)?;
    let op = Op {
        basic,
        reciprocal: words.name == "rcp",
        format,
        pair,
        rounding: rounding.unwrap_or(Rounding::Nearest),
        ftz: words.has(flag::FTZ),
        sat: words.has(flag::SAT),
        relu: words.has(flag::RELU),
    };
    let operands = Operands::new(ty, [ty; 3].get(..count).unwrap_or(&[]));
    Ok(Arith { operation: Operation::Float(op), operands })
}

impl Op {
    pub(super) fn eval(self, io: &mut Io<'_>) {
        match (self.format, self.pair) {
            (F32, false) if self.rounding == Rounding::Nearest => self.single(io),
            (F64, false) if self.rounding == Rounding::Nearest => self.double(io),
            (F32, true) if self.rounding == Rounding::Nearest => {
                io.three(|a, b, c| {
                    spread3(F32, true, a, b, c, |a, b, c| self.finish(self.nearest_single(a, b, c)))
                });
            }
            (F16, _) => self.halves::<false>(io),
            (BF16, _) => self.halves::<true>(io),
            (format, pair) => {
                io.three(|a, b, c| {
                    spread3(format, pair, a, b, c, |a, b, c| self.directed(a, b, c))
                });
            }
        }
    }

    /// Rounds to nearest in `f32`, by the machine's own arithmetic.
    fn single(self, io: &mut Io<'_>) {
        match (self.basic, self.ftz, self.sat) {
            (Basic::Add, false, false) => io.two(|a, b| canonical(float(a) + float(b))),
            (Basic::Sub, false, false) => io.two(|a, b| canonical(float(a) - float(b))),
            (Basic::Mul, false, false) => io.two(|a, b| canonical(float(a) * float(b))),
            (Basic::Fma, false, false) => {
                let doubtful = Cell::new(false);
                io.three(|a, b, c| {
                    let sum = f64::from(float(a)) * f64::from(float(b)) + f64::from(float(c));
                    doubtful.set(doubtful.get() | may_round_twice(sum));
                    canonical(sum as f32)
                });
                if doubtful.get() {
                    io.three(|a, b, c| canonical(fused(float(a), float(b), float(c))));
                }
            }
            (Basic::Add, true, false) => io.two(|a, b| flushed(flushing(a) + flushing(b))),
            (Basic::Sub, true, false) => io.two(|a, b| flushed(flushing(a) - flushing(b))),
            (Basic::Mul, true, false) => {
                io.two(|a, b| flushed_exact(f64::from(flushing(a)) * f64::from(flushing(b))))
            }
            (Basic::Fma, true, false) => io.three(|a, b, c| {
                let [a, b, c] = [a, b, c].map(|x| f64::from(flushing(x)));
                flushed_exact(fused_odd(a, b, c))
            }),
            (_, true, _) => io.three(|a, b, c| self.directed(a, b, c)),
            _ => io.three(|a, b, c| self.finish(self.nearest_single(a, b, c))),
        }
    }

    #[inline(always)]
    fn nearest_single(self, a: u64, b: u64, c: u64) -> u64 {
        let operand = |x| if self.ftz { flushing(x) } else { float(x) };
        canonical(match self.basic {
            Basic::Add => operand(a) + operand(b),
            Basic::Sub => operand(a) - operand(b),
            Basic::Mul => operand(a) * operand(b),
            Basic::Fma => fused(operand(a), operand(b), operand(c)),
            Basic::Div if self.reciprocal => 1.0 / operand(a),
            Basic::Div => operand(a) / operand(b),
            Basic::Sqrt => operand(a).sqrt(),
        })
    }

    /// Rounds to nearest in `f64`, by the machine's own arithmetic.
    fn double(self, io: &mut Io<'_>) {
        let of = f64::from_bits;
        match self.basic {
            Basic::Add => io.two(|a, b| double(of(a) + of(b), [b, a, 0])),
            Basic::Sub => io.two(|a, b| double(of(a) - of(b), [b, a, 0])),
            Basic::Mul => io.two(|a, b| double(of(a) * of(b), [b, a, 0])),
            Basic::Fma => io.three(|a, b, c| double(of(a).mul_add(of(b), of(c)), [b, c, a])),
            Basic::Div if self.reciprocal => io.one(|a| double(1.0 / of(a), [a, 0, 0])),
            Basic::Div => io.two(|a, b| double(of(a) / of(b), [a, b, 0])),
            Basic::Sqrt => io.one(|a| double(of(a).sqrt(), [a, 0, 0])),
        }
    }

    /// Rounds to nearest in a half format: in `f64`, then once to the format.
    ///
    /// A sum or product of halves is exact in `f64`, or is rounded there to more than twice the
    /// format's precision and two bits, so that the second rounding gives what one rounding gives.
    fn halves<const BF: bool>(self, io: &mut Io<'_>) {
        let format = half_format(BF);
        let pair = self.pair;
        match self.basic {
            Basic::Add => io.two(|a, b| {
                spread2(format, pair, a, b, |a, b| {
                    self.narrow::<BF>(self.half::<BF>(a) + self.half::<BF>(b))
                })
            }),
            Basic::Sub => io.two(|a, b| {
                spread2(format, pair, a, b, |a, b| {
                    self.narrow::<BF>(self.half::<BF>(a) - self.half::<BF>(b))
                })
            }),
            Basic::Mul => io.two(|a, b| {
                spread2(format, pair, a, b, |a, b| {
                    self.narrow::<BF>(self.half::<BF>(a) * self.half::<BF>(b))
                })
            }),
            _ => io.three(|a, b, c| {
                spread3(format, pair, a, b, c, |a, b, c| {
                    self.narrow::<BF>(fused_odd(
                        self.half::<BF>(a),
                        self.half::<BF>(b),
                        self.half::<BF>(c),
                    ))
                })
            }),
        }
    }

    /// Returns the value of an operand.
    #[inline(always)]
    fn half<const BF: bool>(self, bits: u64) -> f64 {
        let format = half_format(BF);
        format.load(if self.ftz { format.flush(bits) } else { bits })
    }

    /// Rounds and finishes a result.
    #[inline(always)]
    fn narrow<const BF: bool>(self, value: f64) -> u64 {
        let format = half_format(BF);
        let value = if self.ftz && format.is_tiny(value, Rounding::Nearest) {
            0.0f64.copysign(value)
        } else {
            value
        };
        Self { format, ..self }.finish(format.store(value, Rounding::Nearest))
    }

    /// Rounds in a mode that the machine does not have, by integer arithmetic.
    fn directed(self, a: u64, b: u64, c: u64) -> u64 {
        let operand = |x| self.format.load(if self.ftz { self.format.flush(x) } else { x });
        let operands = if self.reciprocal {
            [1.0, operand(a), 0.0]
        } else {
            [operand(a), operand(b), operand(c)]
        };
        if self.ftz
            && let Some(zero) = self.flushed_before_rounding(operands)
        {
            return self.finish(zero);
        }
        let result = rounded(self.basic, operands, self.format, self.rounding);
        if self.format == F64 && F64.is_nan(result) {
            return double_nan(match self.basic {
                Basic::Add | Basic::Sub | Basic::Mul => [b, a, 0],
                Basic::Fma => [b, c, a],
                Basic::Div | Basic::Sqrt if self.reciprocal => [a, 0, 0],
                Basic::Div | Basic::Sqrt => [a, b, 0],
            });
        }
        self.finish(result)
    }

    /// Returns the zero that the result of `.ftz` is, if the result is tiny: the rounded one may be
    /// normal.
    fn flushed_before_rounding(self, [a, b, c]: [f64; 3]) -> Option<u64> {
        // A quotient of two values of 24 bits is not so near to a power of two that `f64` rounds it
        // to one.
        let exact = match self.basic {
            Basic::Mul => a * b,
            Basic::Fma => fused_odd(a, b, c),
            Basic::Div => a / b,
            Basic::Add | Basic::Sub | Basic::Sqrt => return None,
        };
        let sign = if exact.is_sign_negative() { self.format.sign() } else { 0 };
        (exact != 0.0 && self.format.is_tiny(exact, self.rounding)).then_some(sign)
    }

    /// Flushes and clamps a result.
    #[inline(always)]
    fn finish(self, bits: u64) -> u64 {
        let bits = if self.ftz { self.format.flush(bits) } else { bits };
        if self.sat {
            self.format.saturate(bits)
        } else if self.relu {
            self.format.relu(bits)
        } else {
            bits
        }
    }
}

/// Returns the format of `bf16` or of `f16`.
const fn half_format(bf: bool) -> Format {
    if bf { BF16 } else { F16 }
}

/// Returns the value; a subnormal one is a zero of the same sign.
#[inline(always)]
fn flushing(bits: u64) -> f32 {
    float(F32.flush(bits))
}

/// Returns the bits; NaN is canonical, and a subnormal value is a zero of the same sign.
#[inline(always)]
fn flushed(x: f32) -> u64 {
    F32.flush(canonical(x))
}

/// Rounds an exact value, or one that is rounded to odd. One that is tiny is a zero.
#[inline(always)]
fn flushed_exact(x: f64) -> u64 {
    canonical(if F32.is_tiny(x, Rounding::Nearest) { 0.0f32.copysign(x as f32) } else { x as f32 })
}

#[inline(always)]
pub(super) fn float(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

/// Returns the bits; every NaN is `0x7fffffff` (PTX ISA, "Floating point instructions": payloads
/// are not preserved).
#[inline(always)]
pub(super) fn canonical(x: f32) -> u64 {
    if x.is_nan() { F32.nan } else { u64::from(x.to_bits()) }
}

/// Returns the bits of a result in `f64`: NaN is the first NaN of the operands, made quiet, or the
/// one that the hardware makes.
#[inline(always)]
pub(super) fn double(x: f64, operands: [u64; 3]) -> u64 {
    if x.is_nan() { double_nan(operands) } else { x.to_bits() }
}

/// Returns the bits of `c + a * b` in `f64`.
pub(crate) fn fused_double(c: u64, a: u64, b: u64) -> u64 {
    double(f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)), [b, c, a])
}

/// Returns the bits of `a + b` in `f64`, which is the first of the two if both are NaN.
#[must_use]
pub fn added_double(a: u64, b: u64) -> u64 {
    double(f64::from_bits(a) + f64::from_bits(b), [a, b, 0])
}

#[cold]
#[inline(never)]
fn double_nan(operands: [u64; 3]) -> u64 {
    operands.into_iter().find(|bits| F64.is_nan(*bits)).map_or(F64.nan, |bits| F64.quiet(bits))
}

/// Returns whether a sum that was rounded to `f64` may round to another `f32` than the exact sum:
/// if it is in the middle of two that are normal, or is so small that the middles are elsewhere.
#[inline(always)]
fn may_round_twice(sum: f64) -> bool {
    let bits = sum.to_bits();
    let is_middle = bits & 0x1fff_ffff == 0x1000_0000;
    let exponent = bits >> 52 & 0x7ff;
    is_middle | ((exponent < 1023 - 125) & (bits << 1 != 0))
}

/// Returns `a * b + c` with one rounding.
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    fused_odd(f64::from(a), f64::from(b), f64::from(c)) as f32
}

/// Returns `a * b + c` rounded to odd, for a product that `f64` holds exactly: the neighbour whose
/// last bit is set, if it is inexact. A second rounding to a format with two bits less or fewer
/// then gives what one rounding gives.
#[inline(always)]
fn fused_odd(a: f64, b: f64, c: f64) -> f64 {
    let product = a * b;
    let sum = product + c;
    // What the sum lacks, exactly.
    let c_part = sum - product;
    let error = (product - (sum - c_part)) + (c - c_part);
    let bits = sum.to_bits();
    let inexact = error != 0.0 && error.is_finite() && bits & 1 == 0;
    // Towards the exact value, which is on the side of the error.
    let away = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if !inexact {
        bits
    } else if away {
        bits + 1
    } else {
        bits.wrapping_sub(1)
    })
}
