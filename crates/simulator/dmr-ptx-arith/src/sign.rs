//! Floating-point `min`, `max`, `abs`, `neg`, `copysign`, `testp`: selections, changes of the sign,
//! properties.

use super::exact::{BF16, F16, F32, F64, Format};
use super::float::format_of;
use super::io::Io;
use super::modifiers::{Modifiers, flag};
use super::pairs::{spread1, spread2, spread3};
use super::{Arith, Operands, Operation};
use dmr_ptx_syntax::Type;

/// The operation, without its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Min,
    Max,
    Abs,
    Neg,
    CopySign,
    Test(Class),
}

/// A property that `testp` tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

/// An operation on one floating-point type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    operator: Operator,
    format: Format,
    pair: bool,
    ftz: bool,
    /// NaN if an operand is NaN, instead of the other operand.
    nan: bool,
    /// Compares magnitudes; the sign is the product of the signs.
    xorsign: bool,
}

/// Decodes an instruction whose type is a floating-point one.
pub(super) fn decode(words: &Modifiers<'_>) -> Result<Arith, String> {
    let mut words = *words;
    let ty = words.one_type()?;
    let Some((format, pair)) = format_of(ty) else {
        return words.wrong_type(ty);
    };
    let plain = matches!(ty, Type::F32 | Type::F64);
    let ftz = if format == F32 || format == F16 { flag::FTZ } else { 0 };
    let selection = if ty == Type::F64 { 0 } else { ftz | flag::NAN | flag::XORSIGN | flag::ABS };
    let class = words.class.take();
    let (operator, allowed, operands) = match words.name {
        "min" | "max" => {
            let operands = if ty == Type::F32 {
                Operands::new(ty, &[ty; 3]).with_optional(1)
            } else {
                Operands::new(ty, &[ty; 2])
            };
            (if words.name == "min" { Operator::Min } else { Operator::Max }, selection, operands)
        }
        "abs" => (Operator::Abs, ftz, Operands::new(ty, &[ty])),
        "neg" => (Operator::Neg, ftz, Operands::new(ty, &[ty])),
        "copysign" if plain => (Operator::CopySign, 0, Operands::new(ty, &[ty; 2])),
        "testp" if plain => {
            let class = match class {
                Some("finite") => Class::Finite,
                Some("infinite") => Class::Infinite,
                Some("number") => Class::Number,
                Some("notanumber") => Class::NotANumber,
                Some("normal") => Class::Normal,
                Some("subnormal") => Class::Subnormal,
                _ => return Err("testp needs a property to test for".to_owned()),
            };
            (Operator::Test(class), 0, Operands::new(Type::Pred, &[ty]))
        }
        _ => return words.wrong_type(ty),
    };
    words.only(allowed)?;
    let xorsign = words.has(flag::XORSIGN);
    // `.xorsign.abs` is one modifier of two words; the name of the instruction `abs` is no
    // modifier.
    if xorsign != words.has(flag::ABS) || ty == Type::F32x2 {
        return Err(format!("{}: these modifiers are not supported for {ty:?}", words.name));
    }
    let op = Op {
        operator,
        format,
        pair,
        ftz: words.has(flag::FTZ),
        nan: words.has(flag::NAN),
        xorsign,
    };
    Ok(Arith { operation: Operation::Sign(op), operands })
}

impl Op {
    pub(super) fn eval(self, io: &mut Io<'_>) {
        let selects = matches!(self.operator, Operator::Min | Operator::Max);
        match self.format {
            F32 if selects && io.count == 2 && !self.xorsign => {
                io.two(|a, b| {
                    let op = Self { format: F32, ..self };
                    op.lesser_or_greater(op.operand(a), op.operand(b))
                });
            }
            F32 => Self { format: F32, pair: false, ..self }.eval_constant(io),
            F16 => Self { format: F16, ..self }.eval_constant(io),
            BF16 => Self { format: BF16, ..self }.eval_constant(io),
            _ => self.eval_constant(io),
        }
    }

    /// Evaluates with a format that is a constant where this is inlined.
    #[inline(always)]
    fn eval_constant(self, io: &mut Io<'_>) {
        let Self { format, pair, .. } = self;
        let sign = format.sign();
        match self.operator {
            Operator::Abs => io.one(|a| spread1(format, pair, a, |a| self.with_sign(a, a & !sign))),
            Operator::Neg => io.one(|a| spread1(format, pair, a, |a| self.with_sign(a, a ^ sign))),
            Operator::CopySign => io.two(|a, b| a & sign | b & !sign),
            Operator::Test(class) => io.one(|a| u64::from(test(format, a, class))),
            Operator::Min | Operator::Max if io.count == 3 => {
                io.three(|a, b, c| spread3(format, pair, a, b, c, |a, b, c| self.select3(a, b, c)));
            }
            Operator::Min | Operator::Max => {
                io.two(|a, b| spread2(format, pair, a, b, |a, b| self.select2(a, b)))
            }
        }
    }

    #[inline(always)]
    fn operand(self, bits: u64) -> u64 {
        if self.ftz { self.format.flush(bits) } else { bits }
    }

    /// Returns `changed`, which is `bits` with another sign; a NaN is the canonical one, or keeps
    /// its sign in `f64`.
    #[inline(always)]
    fn with_sign(self, bits: u64, changed: u64) -> u64 {
        if !self.format.is_nan(bits) {
            self.operand(changed)
        } else if self.format == F64 {
            F64.quiet(bits)
        } else {
            self.format.nan
        }
    }

    #[inline(always)]
    fn select2(self, a: u64, b: u64) -> u64 {
        let a = self.operand(a);
        let b = self.operand(b);
        if self.xorsign {
            let sign = self.format.sign();
            self.signed(self.lesser_or_greater(a & !sign, b & !sign), a ^ b)
        } else {
            self.lesser_or_greater(a, b)
        }
    }

    fn select3(self, a: u64, b: u64, c: u64) -> u64 {
        let a = self.operand(a);
        let b = self.operand(b);
        let c = self.operand(c);
        if self.xorsign {
            let sign = self.format.sign();
            let first = self.lesser_or_greater(a & !sign, b & !sign);
            self.signed(self.lesser_or_greater(first, c & !sign), a ^ b ^ c)
        } else {
            self.lesser_or_greater(self.lesser_or_greater(a, b), c)
        }
    }

    /// Gives a magnitude a sign; NaN stays canonical.
    fn signed(self, magnitude: u64, signs: u64) -> u64 {
        if self.format.is_nan(magnitude) {
            magnitude
        } else {
            magnitude | signs & self.format.sign()
        }
    }

    /// Returns the lesser or the greater of two operands; -0 is less than +0.
    #[inline(always)]
    fn lesser_or_greater(self, a: u64, b: u64) -> u64 {
        let format = self.format;
        let a_nan = format.is_nan(a);
        let b_nan = format.is_nan(b);
        let less = key(format, a) < key(format, b);
        let selected = if less == (self.operator == Operator::Min) { a } else { b };
        if a_nan | b_nan {
            if self.nan || a_nan && b_nan {
                return if format == F64 { F64.quiet(b) } else { format.nan };
            }
            return if a_nan { b } else { a };
        }
        selected
    }
}

/// Returns a number that orders the values of a format as the values are ordered.
#[inline(always)]
fn key(format: Format, bits: u64) -> i64 {
    let magnitude = (bits & (format.sign() - 1)) as i64;
    let negative = -i64::from(bits & format.sign() != 0);
    magnitude ^ negative
}

fn test(format: Format, bits: u64, class: Class) -> bool {
    let magnitude = bits & (format.sign() - 1);
    let finite = magnitude <= format.greatest;
    let subnormal = magnitude != 0 && format.flush(magnitude) == 0;
    match class {
        Class::Finite => finite,
        Class::Infinite => magnitude == format.infinity(),
        Class::Number => !format.is_nan(bits),
        Class::NotANumber => format.is_nan(bits),
        // Zeros count as normal.
        Class::Normal => finite && !subnormal,
        Class::Subnormal => subnormal,
    }
}
