//! Comparisons: `set`, `setp`, `slct`.

use super::exact::{BF16, F16, F32, F64, Format};
use super::float::{float, format_of};
use super::integer::{extend, low};
use super::io::Io;
use super::modifiers::{Combine, Comparison, Modifiers, flag};
use super::{Arith, Operands, Operation};
use dmr_ptx_syntax::Type;

/// The use that is made of the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// The outcome and its complement, as predicates.
    Setp,
    /// The outcome as a value of this type: all ones, or 1.
    Set(Type),
    /// A selection by the sign of the third operand.
    Slct,
}

/// A comparison of values of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    used: Use,
    ty: Type,
    /// The relations for which the comparison holds: bits [`LESS`], [`EQUAL`], [`GREATER`],
    /// [`UNORDERED`].
    holds: u8,
    combine: Option<Combine>,
    ftz: bool,
}

const LESS: u8 = 1;
const EQUAL: u8 = 2;
const GREATER: u8 = 4;
const UNORDERED: u8 = 8;

/// Decodes `slct`.
pub(super) fn decode_slct(words: &Modifiers<'_>) -> Result<Arith, String> {
    use Type::{B16, B32, B64, F32, F64, S16, S32, S64, U16, U32, U64};
    words.only(flag::FTZ)?;
    let &[ty, by] = words.types() else {
        return Err("slct needs two types".to_owned());
    };
    let moved = matches!(ty, B16 | B32 | B64 | U16 | U32 | U64 | S16 | S32 | S64 | F32 | F64);
    if !moved || !matches!(by, S32 | F32) || words.has(flag::FTZ) && by != F32 {
        return words.wrong_type(by);
    }
    let op = Op { used: Use::Slct, ty: by, holds: 0, combine: None, ftz: words.has(flag::FTZ) };
    Ok(Arith { operation: Operation::Compare(op), operands: Operands::new(ty, &[ty, ty, by]) })
}

/// Decodes `set` and `setp`.
pub(super) fn decode(words: &Modifiers<'_>) -> Result<Arith, String> {
    let mut words = *words;
    let combine = words.combine.take();
    let (result, ty) = match (words.name, words.types()) {
        ("setp", &[ty]) => (None, ty),
        ("set", &[result, ty]) => (Some(result), ty),
        _ => return Err(format!("{} has a wrong number of types", words.name)),
    };
    let comparison = match (words.comparison.take(), words.has(flag::LO), words.has(flag::HI)) {
        (Some(comparison), false, false) => comparison,
        (None, true, false) => Comparison::Lo,
        (None, false, true) => Comparison::Hi,
        _ => return Err(format!("{} needs one comparison", words.name)),
    };
    let flushes = matches!(ty, Type::F32 | Type::F16 | Type::F16x2);
    words.only(flag::LO | flag::HI | if flushes { flag::FTZ } else { 0 })?;
    let holds =
        holds(comparison, ty).ok_or_else(|| format!("{}: {comparison:?} of {ty:?}", words.name))?;
    let mut sources = [ty, ty, Type::Pred];
    let count = if combine.is_some() { 3 } else { 2 };
    let pair = matches!(ty, Type::F16x2 | Type::Bf16x2);
    let (used, operands) = match result {
        None => {
            let operands = Operands::new(Type::Pred, sources.get(..count).unwrap_or(&[]));
            (Use::Setp, operands.with_predicate())
        }
        Some(result) => {
            let fits = match result {
                Type::U32 | Type::S32 | Type::F32 => !pair || result != Type::F32,
                Type::U16 | Type::S16 => matches!(ty, Type::F16 | Type::Bf16),
                Type::F16 | Type::Bf16 => !pair,
                Type::F16x2 | Type::Bf16x2 => result == ty,
                _ => false,
            };
            if !fits {
                return words.wrong_type(result);
            }
            sources[2] = Type::Pred;
            (Use::Set(result), Operands::new(result, sources.get(..count).unwrap_or(&[])))
        }
    };
    let op = Op { used, ty, holds, combine, ftz: words.has(flag::FTZ) };
    Ok(Arith { operation: Operation::Compare(op), operands })
}

/// Returns the relations for which a comparison holds, or `None` if the type does not have it.
fn holds(comparison: Comparison, ty: Type) -> Option<u8> {
    use Comparison as C;
    let float = format_of(ty).is_some() && ty != Type::F32x2;
    let unsigned = matches!(ty, Type::U16 | Type::U32 | Type::U64);
    let number = float || unsigned || matches!(ty, Type::S16 | Type::S32 | Type::S64);
    let any = number || matches!(ty, Type::B16 | Type::B32 | Type::B64);
    let (holds, has) = match comparison {
        C::Eq => (EQUAL, any),
        C::Ne => (LESS | GREATER, any),
        C::Lt => (LESS, number),
        C::Le => (LESS | EQUAL, number),
        C::Gt => (GREATER, number),
        C::Ge => (GREATER | EQUAL, number),
        C::Lo => (LESS, unsigned),
        C::Ls => (LESS | EQUAL, unsigned),
        C::Hi => (GREATER, unsigned),
        C::Hs => (GREATER | EQUAL, unsigned),
        C::Equ => (EQUAL | UNORDERED, float),
        C::Neu => (LESS | GREATER | UNORDERED, float),
        C::Ltu => (LESS | UNORDERED, float),
        C::Leu => (LESS | EQUAL | UNORDERED, float),
        C::Gtu => (GREATER | UNORDERED, float),
        C::Geu => (GREATER | EQUAL | UNORDERED, float),
        C::Num => (LESS | EQUAL | GREATER, float),
        C::Nan => (UNORDERED, float),
    };
    has.then_some(holds)
}

impl Op {
    pub(super) fn eval(self, io: &mut Io<'_>) {
        use Type as T;
        match (self.used, self.ty) {
            (Use::Slct, T::S32) => io.three(|a, b, c| if (c as u32 as i32) >= 0 { a } else { b }),
            // A subnormal is negative, or with `.ftz` a zero; NaN selects the second operand.
            (Use::Slct, _) => io.three(|a, b, c| {
                let c = if self.ftz { F32.flush(c) } else { c };
                if float(c) >= 0.0 { a } else { b }
            }),
            (_, T::S16) => self.compare(io, |a, b| {
                integers(extend::<16, true>(a) as i64, extend::<16, true>(b) as i64)
            }),
            (_, T::S32) => self.compare(io, |a, b| integers(a as u32 as i32, b as u32 as i32)),
            (_, T::S64) => self.compare(io, |a, b| integers(a as i64, b as i64)),
            (_, T::F32) if self.ftz => {
                self.compare(io, |a, b| floats(float(F32.flush(a)), float(F32.flush(b))))
            }
            (_, T::F32) => self.compare(io, |a, b| floats(float(a), float(b))),
            (_, T::F64) => self.compare(io, |a, b| floats(F64.load(a), F64.load(b))),
            (_, T::F16) => self.compare(io, |a, b| self.halves(F16, a, b)),
            (_, T::Bf16) => self.compare(io, |a, b| self.halves(BF16, a, b)),
            (_, T::F16x2) => self.compare_pair(io, F16),
            (_, T::Bf16x2) => self.compare_pair(io, BF16),
            _ => self.compare(io, integers),
        }
    }

    #[inline(always)]
    fn compare(self, io: &mut Io<'_>, relation: impl Fn(u64, u64) -> u8) {
        let outcome = |a, b, c: u64, positive: bool| {
            let outcome = (relation(a, b) & self.holds != 0) == positive;
            self.combine.map_or(outcome, |combine| combine.apply(outcome, c != 0))
        };
        match self.used {
            Use::Set(ty) => {
                let truth = truth(ty);
                io.three(|a, b, c| if outcome(a, b, c, true) { truth } else { 0 });
            }
            _ => io.both(|[a, b, c, ..]| {
                (u64::from(outcome(a, b, c, true)), u64::from(outcome(a, b, c, false)))
            }),
        }
    }

    /// Compares the halves of pairs: `setp` has one predicate for each, `set` one value.
    fn compare_pair(self, io: &mut Io<'_>, format: Format) {
        let outcome = |a: u64, b: u64, c: u64, shift: u32| {
            let relation = self.halves(format, low(a >> shift, 16), low(b >> shift, 16));
            let outcome = relation & self.holds != 0;
            self.combine.map_or(outcome, |combine| combine.apply(outcome, c != 0))
        };
        match self.used {
            Use::Set(ty) => {
                let truth = if matches!(ty, Type::U32 | Type::S32) { 0xffff } else { format.one() };
                io.three(|a, b, c| {
                    let half = |shift| if outcome(a, b, c, shift) { truth << shift } else { 0 };
                    half(0) | half(16)
                });
            }
            _ => io.both(|[a, b, c, ..]| {
                (u64::from(outcome(a, b, c, 0)), u64::from(outcome(a, b, c, 16)))
            }),
        }
    }

    #[inline(always)]
    fn halves(self, format: Format, a: u64, b: u64) -> u8 {
        let load = |x| format.load(if self.ftz { format.flush(x) } else { x });
        floats(load(a), load(b))
    }
}

/// Returns the value of `set` for true.
fn truth(ty: Type) -> u64 {
    match (format_of(ty), ty) {
        (Some((format, _)), _) => format.one(),
        (None, Type::U16 | Type::S16) => 0xffff,
        _ => 0xffff_ffff,
    }
}

#[inline(always)]
fn integers<T: Ord>(a: T, b: T) -> u8 {
    if a < b {
        LESS
    } else if a == b {
        EQUAL
    } else {
        GREATER
    }
}

#[inline(always)]
fn floats<T: PartialOrd>(a: T, b: T) -> u8 {
    if a < b {
        LESS
    } else if a == b {
        EQUAL
    } else if a > b {
        GREATER
    } else {
        UNORDERED
    }
}
