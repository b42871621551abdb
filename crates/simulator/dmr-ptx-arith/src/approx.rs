//! Approximations: `div`, `rcp`, `sqrt`, `rsqrt`, `sin`, `cos`, `lg2`, `ex2`, `tanh`.
//!
//! The hardware's results come from tables and differ between generations. Here a result is
//! computed in `f64` and rounded once, which keeps the bounds of the PTX ISA:
//!
//! | instruction | maximum error in the ISA |
//! | --- | --- |
//! | `div.approx.f32` | 2 ulp for a divisor between 2^-126 and 2^126; 0 or NaN above |
//! | `div.full.f32` | 2 ulp |
//! | `rcp.approx.f32` | 1 ulp |
//! | `sqrt.approx.f32` | relative 2^-23 |
//! | `rsqrt.approx.f32` | relative 2^-22.9 |
//! | `sin.approx.f32`, `cos.approx.f32` | absolute 2^-20.5 in [-2pi, 2pi], 2^-14.7 in [-100pi, 100pi]; none outside |
//! | `lg2.approx.f32` | absolute 2^-22 between 0.5 and 2, relative 2^-22 elsewhere |
//! | `ex2.approx.f32` | 2 ulp |
//! | `ex2.approx.f16`, `tanh.approx.f16` | relative 2^-9.9, absolute 2^-10.987 |
//! | `ex2.approx.ftz.bf16`, `tanh.approx.bf16` | relative 2^-7, absolute 2^-8 |
//! | `tanh.approx.f32` | relative 2^-11 |
//! | `rcp.approx.ftz.f64`, `rsqrt.approx.ftz.f64` | the high 32 bits: 20 bits of fraction; no bound is given |
//! | `rsqrt.approx.f64` | none is given |

use super::exact::{BF16, F16, F32, F64, Format};
use super::float::{canonical, double, float, format_of};
use super::io::Io;
use super::modifiers::{Modifiers, Rounding, flag};
use super::pairs::spread1;
use super::{Arith, Operands, Operation};
use dmr_ptx_syntax::Type;

/// The upper 32 bits of an `f64`.
const F64_HIGH: Format =
    Format { fraction_bits: 20, exponent_bits: 11, nan: 0x7fff_ffff, greatest: 0x7fef_ffff };

/// The operation, without its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Div,
    DivFull,
    Rcp,
    Sqrt,
    Rsqrt,
    Sin,
    Cos,
    Lg2,
    Ex2,
    Tanh,
}

/// An approximation on one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    operator: Operator,
    format: Format,
    pair: bool,
    ftz: bool,
}

/// Decodes an approximation.
pub(super) fn decode(words: &Modifiers<'_>) -> Result<Arith, String> {
    let ty = words.one_type()?;
    let Some((format, pair)) = format_of(ty) else {
        return words.wrong_type(ty);
    };
    let full = words.has(flag::FULL);
    if full == words.has(flag::APPROX) {
        return Err(format!("{} needs .approx", words.name));
    }
    let operator = match words.name {
        "div" if full => Operator::DivFull,
        "div" => Operator::Div,
        "rcp" => Operator::Rcp,
        "sqrt" => Operator::Sqrt,
        "rsqrt" => Operator::Rsqrt,
        "sin" => Operator::Sin,
        "cos" => Operator::Cos,
        "lg2" => Operator::Lg2,
        "ex2" => Operator::Ex2,
        _ => Operator::Tanh,
    };
    let ftz = words.has(flag::FTZ);
    let half = matches!(operator, Operator::Ex2 | Operator::Tanh);
    let (fits, flushes) = match ty {
        Type::F32 => (true, operator != Operator::Tanh),
        Type::F64 => (operator == Operator::Rcp && ftz || operator == Operator::Rsqrt, true),
        Type::F16 | Type::F16x2 => (half, false),
        // ex2 has `.ftz` only, tanh has none.
        Type::Bf16 | Type::Bf16x2 => (half && ftz == (operator == Operator::Ex2), true),
        _ => (false, false),
    };
    if !fits {
        return words.wrong_type(ty);
    }
    let allowed = if full { flag::FULL } else { flag::APPROX };
    words.only(allowed | if flushes { flag::FTZ } else { 0 })?;
    let count = if words.name == "div" { 2 } else { 1 };
    let operands = Operands::new(ty, [ty; 2].get(..count).unwrap_or(&[]));
    Ok(Arith { operation: Operation::Approx(Op { operator, format, pair, ftz }), operands })
}

impl Op {
    pub(super) fn eval(self, io: &mut Io<'_>) {
        match (self.format, self.operator) {
            (_, Operator::Div) => {
                io.two(|a, b| self.finish(quotient(self.operand(a), self.operand(b))))
            }
            (_, Operator::DivFull) => {
                io.two(|a, b| {
                    self.finish(canonical(float(self.operand(a)) / float(self.operand(b))))
                });
            }
            (F32, Operator::Rcp) => {
                io.one(|a| self.finish(canonical(1.0 / float(self.operand(a)))))
            }
            (F32, Operator::Sqrt) => {
                io.one(|a| self.finish(canonical(float(self.operand(a)).sqrt())))
            }
            (F32, operator) => {
                io.one(|a| {
                    self.finish(canonical(
                        function(operator, f64::from(float(self.operand(a)))) as f32
                    ))
                });
            }
            (F64, operator) if self.ftz => io.one(|a| high_half(operator, a)),
            (F64, operator) => io.one(|a| double(function(operator, f64::from_bits(a)), [a, 0, 0])),
            (F16, operator) => {
                io.one(|a| spread1(F16, self.pair, a, |a| self.half(F16, operator, a)))
            }
            (_, operator) => {
                io.one(|a| spread1(BF16, self.pair, a, |a| self.half(BF16, operator, a)))
            }
        }
    }

    #[inline(always)]
    fn operand(self, bits: u64) -> u64 {
        if self.ftz { self.format.flush(bits) } else { bits }
    }

    #[inline(always)]
    fn finish(self, bits: u64) -> u64 {
        if self.ftz { self.format.flush(bits) } else { bits }
    }

    fn half(self, format: Format, operator: Operator, a: u64) -> u64 {
        self.finish(
            format.store(function(operator, format.load(self.operand(a))), Rounding::Nearest),
        )
    }
}

/// Returns the quotient of `div.approx`: a divisor above 2^126 gives zero, or NaN for an infinite
/// dividend.
fn quotient(a: u64, b: u64) -> u64 {
    let a = float(a);
    let b = float(b);
    if b.is_finite() && b.abs() > f32::from_bits(0x7e80_0000) {
        return if a.is_finite() { canonical((a * 0.0) * b.signum()) } else { F32.nan };
    }
    canonical(a / b)
}

/// Computes a function in `f64`. Its zeros, infinities and NaN are those of the ISA's tables.
fn function(operator: Operator, x: f64) -> f64 {
    match operator {
        Operator::Rcp | Operator::Div | Operator::DivFull => 1.0 / x,
        Operator::Sqrt => x.sqrt(),
        // 1 / -0 is negative infinity, as the root of -0 is -0.
        Operator::Rsqrt => 1.0 / x.sqrt(),
        Operator::Sin => turns(x).sin(),
        Operator::Cos => turns(x).cos(),
        Operator::Lg2 => x.log2(),
        Operator::Ex2 => x.exp2(),
        Operator::Tanh => x.tanh(),
    }
}

/// Returns an angle as the hardware takes it: in turns, rounded to `f32`; the whole ones do not
/// count.
fn turns(x: f64) -> f64 {
    const TURNS_PER_RADIAN: f32 = f32::from_bits(0x3e22_f983);
    let turns = F32.load(F32.flush(F32.store(x * f64::from(TURNS_PER_RADIAN), Rounding::Zero)));
    (turns.fract() * std::f64::consts::TAU).copysign(x)
}

/// Computes with the high 32 bits of an `f64`; the low ones of the result are zero.
fn high_half(operator: Operator, a: u64) -> u64 {
    let operand = f64::from_bits(F64.flush(a & 0xffff_ffff_0000_0000));
    let result = F64_HIGH.store(function(operator, operand), Rounding::Nearest);
    F64_HIGH.flush(result) << 32
}
