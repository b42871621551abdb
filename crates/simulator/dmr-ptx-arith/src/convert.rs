//! Conversions: `cvt` between integer and floating-point types, and to and from pairs.

use super::exact::{BF16, E4M3, E5M2, Exact, F16, F32, F64, Format, TF32};
use super::io::Io;
use super::modifiers::{Modifiers, Rounding, flag};
use super::{Arith, Operands, Operation, pack};
use dmr_ptx_syntax::Type;

/// A type as conversions see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Integer { bits: u32, signed: bool },
    Float(Format),
}

/// The operand and the result of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// One value to one value.
    Scalar(Kind, Kind),
    /// Two `f32` to a pair; the first operand becomes the upper value.
    Join(Format),
    /// A pair to a pair.
    Pair(Format, Format),
}

/// A conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    shape: Shape,
    rounding: Rounding,
    /// Rounds a floating-point value to an integral one.
    integral: bool,
    ftz: bool,
    sat: bool,
    relu: bool,
    satfinite: bool,
}

fn kind(ty: Type) -> Option<Kind> {
    let integer = |bits, signed| Some(Kind::Integer { bits, signed });
    match ty {
        Type::U8 => integer(8, false),
        Type::U16 => integer(16, false),
        Type::U32 => integer(32, false),
        Type::U64 => integer(64, false),
        Type::S8 => integer(8, true),
        Type::S16 => integer(16, true),
        Type::S32 => integer(32, true),
        Type::S64 => integer(64, true),
        Type::F16 => Some(Kind::Float(F16)),
        Type::Bf16 => Some(Kind::Float(BF16)),
        Type::Tf32 => Some(Kind::Float(TF32)),
        Type::F32 => Some(Kind::Float(F32)),
        Type::F64 => Some(Kind::Float(F64)),
        _ => None,
    }
}

/// Returns the format of a pair's values.
fn pair(ty: Type) -> Option<Format> {
    match ty {
        Type::F16x2 => Some(F16),
        Type::Bf16x2 => Some(BF16),
        Type::E4m3x2 => Some(E4M3),
        Type::E5m2x2 => Some(E5M2),
        _ => None,
    }
}

/// Decodes a conversion.
pub(super) fn decode(words: &Modifiers<'_>) -> Result<Arith, String> {
    if words.has(flag::PACK) {
        return pack::decode(words);
    }
    let mut words = *words;
    let &[to, from] = words.types() else {
        return Err("cvt needs two types".to_owned());
    };
    let rounding = words.rounding.take();
    let integral = words.has(flag::INTEGER);
    let (shape, operands) = match (pair(to), pair(from)) {
        (Some(format), None) if from == Type::F32 => {
            (Shape::Join(format), Operands::new(to, &[from; 2]))
        }
        (Some(format), Some(source)) => (Shape::Pair(source, format), Operands::new(to, &[from])),
        _ => {
            let unknown = |ty| format!("cvt is not supported for the type {ty:?}");
            let source = kind(from).ok_or_else(|| unknown(from))?;
            let result = kind(to).ok_or_else(|| unknown(to))?;
            let operands = Operands::new(to, &[from]);
            let operands =
                if matches!(result, Kind::Integer { .. }) { operands.extended() } else { operands };
            (Shape::Scalar(source, result), operands)
        }
    };
    let (needs, allowed) = rules(shape, integral)?;
    if needs != rounding.is_some() && !(rounding.is_some() && integral && same_float(shape)) {
        let problem = if needs { "needs a" } else { "has no" };
        return Err(format!("cvt {problem} rounding mode from {from:?} to {to:?}"));
    }
    let away = rounding == Some(Rounding::NearestAway);
    if away && to != Type::Tf32 {
        return Err(format!("cvt has no rounding mode .rna to {to:?}"));
    }
    words.only(allowed | flag::INTEGER)?;
    let eight_bit = |format| format == E4M3 || format == E5M2;
    let to_eight =
        matches!(shape, Shape::Join(format) | Shape::Pair(_, format) if eight_bit(format));
    if to_eight && !words.has(flag::SATFINITE) {
        return Err(format!("cvt to {to:?} needs .satfinite"));
    }
    let op = Op {
        shape,
        rounding: rounding.unwrap_or(Rounding::Nearest),
        integral,
        // A conversion from `f32` to `f16` keeps subnormal operands all the same.
        ftz: words.has(flag::FTZ) && to != Type::F16,
        sat: words.has(flag::SAT),
        relu: words.has(flag::RELU),
        satfinite: words.has(flag::SATFINITE),
    };
    Ok(Arith { operation: Operation::Convert(op), operands })
}

fn same_float(shape: Shape) -> bool {
    matches!(shape, Shape::Scalar(Kind::Float(from), Kind::Float(to)) if from == to)
}

/// Returns whether a conversion needs a rounding mode, and the flags that it may have.
fn rules(shape: Shape, integral: bool) -> Result<(bool, u32), String> {
    let finite = flag::RELU | flag::SATFINITE;
    let (needs_integral, needs, allowed) = match shape {
        Shape::Scalar(Kind::Integer { .. }, Kind::Integer { .. }) => (false, false, flag::SAT),
        Shape::Scalar(Kind::Integer { .. }, Kind::Float(_)) => (false, true, flag::SAT),
        Shape::Scalar(Kind::Float(from), Kind::Integer { .. }) => {
            (true, true, flag::SAT | if from == F32 { flag::FTZ } else { 0 })
        }
        Shape::Scalar(Kind::Float(from), Kind::Float(to)) => {
            let ftz = if from == F32 || to == F32 { flag::FTZ } else { 0 };
            // `f32` to `tf32` and from one half format to the other: both lose something.
            let narrows =
                from.fraction_bits > to.fraction_bits || from.exponent_bits > to.exponent_bits;
            let narrow = if matches!(to, F16 | BF16 | TF32) && from == F32 { finite } else { 0 };
            if from == TF32 || to == TF32 && from != F32 {
                return Err("cvt.tf32 converts from f32 only".to_owned());
            }
            (integral && from == to, narrows, ftz | flag::SAT | narrow)
        }
        Shape::Join(_) => (false, true, finite),
        Shape::Pair(from, to) => {
            let narrows = from.fraction_bits > to.fraction_bits;
            if from == BF16 || to == BF16 || narrows != matches!(to, E4M3 | E5M2) || from == to {
                return Err("cvt does not convert between these pairs".to_owned());
            }
            (false, true, flag::RELU | if narrows { flag::SATFINITE } else { 0 })
        }
    };
    if needs_integral != integral {
        return Err("cvt: .rni, .rzi, .rmi and .rpi round to integers, .rn, .rz, .rm and .rp to other values".to_owned());
    }
    Ok((needs, allowed))
}

impl Op {
    pub(super) fn moves_bits(self) -> bool {
        let is_integer = |kind| matches!(kind, Kind::Integer { .. });
        matches!(self.shape, Shape::Scalar(from, to) if is_integer(from) && is_integer(to))
            && !self.sat
    }

    pub(super) fn eval(self, io: &mut Io<'_>) {
        use Kind::{Float, Integer};
        match self.shape {
            Shape::Scalar(Integer { bits, signed }, Integer { bits: to, signed: to_signed }) => {
                if self.sat {
                    io.one(|a| clamp(number(a, bits, signed), to, to_signed));
                } else {
                    io.one(|a| extended(extended(a, bits, signed), to, to_signed));
                }
            }
            Shape::Scalar(Integer { bits, signed }, Float(to)) => {
                io.one(|a| self.finish(self.of_integer(extended(a, bits, signed), signed, to), to));
            }
            Shape::Scalar(Float(from), Integer { bits, signed }) => {
                self.to_integer(io, from, bits, signed)
            }
            Shape::Scalar(Float(from), Float(to)) if from == to => {
                io.one(|a| self.finish(self.to_integral(self.operand(a, from), from), to));
            }
            Shape::Scalar(Float(F16), Float(F32)) => io.one(|a| self.between(a, F16, F32)),
            Shape::Scalar(Float(F32), Float(F16)) => io.one(|a| self.between(a, F32, F16)),
            Shape::Scalar(Float(BF16), Float(F32)) => io.one(|a| self.between(a, BF16, F32)),
            Shape::Scalar(Float(F32), Float(BF16)) => io.one(|a| self.between(a, F32, BF16)),
            Shape::Scalar(Float(from), Float(to)) => {
                let place = if to == TF32 { 13 } else { 0 };
                io.one(|a| self.between(a, from, to) << place);
            }
            Shape::Join(to) => {
                let bits = to.bits();
                io.two(|a, b| self.between(a, F32, to) << bits | self.between(b, F32, to));
            }
            Shape::Pair(from, to) => io.one(|a| {
                let low = self.between(a & ((1 << from.bits()) - 1), from, to);
                self.between(a >> from.bits(), from, to) << to.bits() | low
            }),
        }
    }

    /// Flushes an `f32` operand where the conversion says so; other types keep their subnormals.
    #[inline(always)]
    fn operand(self, bits: u64, format: Format) -> u64 {
        if self.ftz && format == F32 { F32.flush(bits) } else { bits }
    }

    /// Flushes an `f32` result, and clamps.
    #[inline(always)]
    fn finish(self, bits: u64, format: Format) -> u64 {
        let bits = if self.ftz && format == F32 { F32.flush(bits) } else { bits };
        if self.sat { format.saturate(bits) } else { bits }
    }

    /// Converts from one floating-point format to another, with one rounding.
    #[inline(always)]
    fn between(self, bits: u64, from: Format, to: Format) -> u64 {
        if from.is_nan(bits) {
            return self.nan(bits, from, to);
        }
        let value = from.load(self.operand(bits, from));
        if self.ftz && to == F32 && F32.is_tiny(value, self.rounding) {
            return self.finish(bits >> (from.bits() - 1) << 31, to);
        }
        let result = to.store(value, self.rounding);
        let magnitude = result & (to.sign() - 1);
        let result = if self.satfinite && magnitude > to.greatest {
            result & to.sign() | to.greatest
        } else {
            result
        };
        let result = if self.relu { to.relu(result) } else { result };
        self.finish(result, to)
    }

    /// Converts a NaN: the canonical one, except where the hardware moves the bits.
    #[cold]
    #[inline(never)]
    fn nan(self, bits: u64, from: Format, to: Format) -> u64 {
        let sign = if bits & from.sign() != 0 { to.sign() } else { 0 };
        let payload = bits & ((1 << from.fraction_bits) - 1);
        let result = if to == F64 && (self.ftz || self.sat) {
            F32.nan << 29 & (F64.sign() - 1) | F64.infinity()
        } else if to == F64 {
            F64.quiet(sign | F64.infinity() | payload << (52 - from.fraction_bits))
        } else if from == F64 {
            to.quiet(sign | to.infinity() | payload >> (52 - to.fraction_bits))
        } else if (from, to) == (BF16, F32) && !self.ftz && !self.sat {
            return bits << 16;
        } else if to == TF32 && self.rounding == Rounding::NearestAway {
            // The low bits are cut off; with `.satfinite` what is not less than infinity is one
            // less.
            let kept = bits >> 13;
            return if self.satfinite { kept - 1 } else { kept };
        } else {
            to.nan
        };
        if self.sat { to.saturate(result) } else { result }
    }

    /// Converts an integer that is extended to 64 bits.
    #[inline(always)]
    fn of_integer(self, a: u64, signed: bool, to: Format) -> u64 {
        match (to, self.rounding) {
            (F32, Rounding::Nearest) if signed => u64::from((a as i64 as f32).to_bits()),
            (F32, Rounding::Nearest) => u64::from((a as f32).to_bits()),
            (F64, Rounding::Nearest) if signed => (a as i64 as f64).to_bits(),
            (F64, Rounding::Nearest) => (a as f64).to_bits(),
            _ => Exact::of_integer(number(a, 64, signed)).round(to, self.rounding),
        }
    }

    /// Converts to an integer: NaN and values out of range as the PTX ISA says for `cvt`.
    fn to_integer(self, io: &mut Io<'_>, from: Format, bits: u32, signed: bool) {
        // "Zero if source is not .f64 and destination is not .s64, .u64; otherwise 1 <<
        // (BitWidth(dst) - 1)".
        let nan = if from == F64 || bits == 64 { 1 << (bits - 1) } else { 0 };
        let nan = extended(nan, bits, signed);
        // The common ones, in one instruction of the machine.
        if from == F32 && bits == 32 && self.rounding == Rounding::Zero {
            // A subnormal is zero with or without `.ftz`.
            if signed {
                io.one(|a| super::float::float(a) as i32 as i64 as u64);
            } else {
                io.one(|a| u64::from(super::float::float(a) as u32));
            }
            return;
        }
        io.one(|a| {
            let value = from.load(self.operand(a, from));
            if value.is_nan() {
                return nan;
            }
            let value = integral(value, self.rounding);
            // A cast clamps to the range of 64 bits.
            if signed {
                clamp((value as i64).into(), bits, true)
            } else {
                clamp((value as u64).into(), bits, false)
            }
        });
    }

    /// Rounds a value to an integral one, if the conversion says so.
    fn to_integral(self, bits: u64, format: Format) -> u64 {
        if format.is_nan(bits) {
            // A conversion to the same type is a move, but for halves.
            return match (format, self.integral || self.ftz || self.sat) {
                (F32 | F64, false) => bits,
                (F64, true) => F64.quiet(bits),
                _ => format.nan,
            };
        }
        // An integral value of the format's range is a value of the format.
        if self.integral {
            format.store_exact(integral(format.load(bits), self.rounding))
        } else {
            bits
        }
    }
}

/// Rounds to an integral value; a zero keeps the sign of the operand.
#[inline(always)]
fn integral(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest | Rounding::NearestAway => value.round_ties_even(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

/// Extends the low bits of `x` to 64 bits.
#[inline(always)]
pub(super) const fn extended(x: u64, bits: u32, signed: bool) -> u64 {
    let unused = 64 - bits;
    if signed { ((x << unused) as i64 >> unused) as u64 } else { x << unused >> unused }
}

/// Returns the value of the low bits of `x`.
#[inline(always)]
pub(super) fn number(x: u64, bits: u32, signed: bool) -> i128 {
    let x = extended(x, bits, signed);
    if signed { i128::from(x as i64) } else { i128::from(x) }
}

/// Clamps to the range of an integer type; the result is extended to 64 bits.
#[inline(always)]
pub(super) fn clamp(x: i128, bits: u32, signed: bool) -> u64 {
    let (least, most) =
        if signed { (-(1i128 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    x.clamp(least, most) as u64
}
