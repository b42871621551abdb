//! Integer arithmetic: `add`, `sub`, `mul`, `mad`, `mul24`, `mad24`, `sad`, `div`, `rem`, `abs`,
//! `neg`, `min`, `max`.

use super::io::Io;
use super::modifiers::{Modifiers, flag};
use super::{Arith, Operands, Operation};
use dmr_ptx_syntax::Type;

/// The operation, without its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Add,
    Sub,
    MulLo,
    MulHi,
    MulWide,
    MadLo,
    MadHi,
    MadWide,
    Sad,
    Div,
    Rem,
    Abs,
    Neg,
    Min,
    Max,
    Mul24Lo,
    Mul24Hi,
    Mad24Lo,
    Mad24Hi,
}

/// An integer operation on one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    operator: Operator,
    ty: Type,
    saturate: bool,
    relu: bool,
}

/// Decodes an instruction whose type is an integer.
pub(super) fn decode(words: &Modifiers<'_>) -> Result<Arith, String> {
    use Type::{S16, S16x2, S32, S64, U16, U16x2, U32, U64};
    let ty = words.one_type()?;
    let part =
        |lo, hi, wide| match (words.has(flag::LO), words.has(flag::HI), words.has(flag::WIDE)) {
            (true, false, false) => Ok(lo),
            (false, true, false) => Ok(hi),
            (false, false, true) if !matches!(ty, U64 | S64) => Ok(wide),
            _ => Err(format!("{} needs one of .lo, .hi, .wide", words.name)),
        };
    let parts = flag::LO | flag::HI | flag::WIDE;
    let halves = flag::LO | flag::HI;
    let sat32 = |operator| {
        if ty == S32 && matches!(operator, Operator::MadHi | Operator::Mad24Hi) {
            flag::SAT
        } else {
            0
        }
    };
    let packed = matches!(ty, U16x2 | S16x2);
    let (operator, allowed) = match words.name {
        "add" => (Operator::Add, if packed || ty == S32 { flag::SAT } else { 0 }),
        "sub" => (Operator::Sub, if packed || ty == S32 { flag::SAT } else { 0 }),
        "mul" => (part(Operator::MulLo, Operator::MulHi, Operator::MulWide)?, parts),
        "mad" => {
            let operator = part(Operator::MadLo, Operator::MadHi, Operator::MadWide)?;
            (operator, parts | sat32(operator))
        }
        "mul24" => (part(Operator::Mul24Lo, Operator::Mul24Hi, Operator::Mul24Lo)?, halves),
        "mad24" => {
            let operator = part(Operator::Mad24Lo, Operator::Mad24Hi, Operator::Mad24Lo)?;
            (operator, halves | sat32(operator))
        }
        "sad" => (Operator::Sad, 0),
        "div" => (Operator::Div, 0),
        "rem" => (Operator::Rem, 0),
        "abs" => (Operator::Abs, 0),
        "neg" => (Operator::Neg, 0),
        "min" => (Operator::Min, if matches!(ty, S32 | S16x2) { flag::RELU } else { 0 }),
        _ => (Operator::Max, if matches!(ty, S32 | S16x2) { flag::RELU } else { 0 }),
    };
    words.only(allowed)?;
    let fits = match operator {
        Operator::Add | Operator::Sub | Operator::Min | Operator::Max => true,
        Operator::Abs | Operator::Neg => ty.is_signed() && !packed,
        Operator::Mul24Lo | Operator::Mul24Hi | Operator::Mad24Lo | Operator::Mad24Hi => {
            matches!(ty, U32 | S32)
        }
        _ => matches!(ty, U16 | U32 | U64 | S16 | S32 | S64),
    };
    if !fits {
        return words.wrong_type(ty);
    }
    let wide = match ty {
        U16 => U32,
        S16 => S32,
        U32 => U64,
        S32 => S64,
        other => other,
    };
    let operands = match operator {
        Operator::MulWide => Operands::new(wide, &[ty, ty]),
        Operator::MadWide => Operands::new(wide, &[ty, ty, wide]),
        Operator::MadLo
        | Operator::MadHi
        | Operator::Sad
        | Operator::Mad24Lo
        | Operator::Mad24Hi => Operands::new(ty, &[ty; 3]),
        Operator::Abs | Operator::Neg => Operands::new(ty, &[ty]),
        _ => Operands::new(ty, &[ty; 2]),
    };
    let op = Op { operator, ty, saturate: words.has(flag::SAT), relu: words.has(flag::RELU) };
    Ok(Arith { operation: Operation::Integer(op), operands })
}

impl Op {
    pub(super) fn eval(self, io: &mut Io<'_>) {
        match self.ty {
            Type::U16 => self.scalar::<16, false>(io),
            Type::U32 => self.scalar::<32, false>(io),
            Type::U64 => self.scalar::<64, false>(io),
            Type::S16 => self.scalar::<16, true>(io),
            Type::S32 => self.scalar::<32, true>(io),
            Type::S64 => self.scalar::<64, true>(io),
            Type::U16x2 => self.packed::<false>(io),
            _ => self.packed::<true>(io),
        }
    }

    fn scalar<const BITS: u32, const SIGNED: bool>(self, io: &mut Io<'_>) {
        use Operator as W;
        let wide = |x: u64| low(x, if BITS == 64 { 64 } else { 2 * BITS });
        match self.operator {
            W::Add if self.saturate => io.two(|a, b| add::<BITS, SIGNED>(a, b, true)),
            W::Sub if self.saturate => io.two(|a, b| sub::<BITS, SIGNED>(a, b, true)),
            W::Add => io.two(|a, b| low(a.wrapping_add(b), BITS)),
            W::Sub => io.two(|a, b| low(a.wrapping_sub(b), BITS)),
            W::MulLo => io.two(|a, b| low(a.wrapping_mul(b), BITS)),
            W::MadLo => io.three(|a, b, c| low(a.wrapping_mul(b).wrapping_add(c), BITS)),
            W::MulWide => io.two(|a, b| {
                wide(extend::<BITS, SIGNED>(a).wrapping_mul(extend::<BITS, SIGNED>(b)))
            }),
            W::MadWide => io.three(|a, b, c| {
                wide(
                    extend::<BITS, SIGNED>(a)
                        .wrapping_mul(extend::<BITS, SIGNED>(b))
                        .wrapping_add(c),
                )
            }),
            W::MulHi => io.two(high::<BITS, SIGNED>),
            W::MadHi if self.saturate => {
                io.three(|a, b, c| add::<BITS, SIGNED>(high::<BITS, SIGNED>(a, b), c, true));
            }
            W::MadHi => io.three(|a, b, c| low(high::<BITS, SIGNED>(a, b).wrapping_add(c), BITS)),
            W::Sad => io.three(|a, b, c| {
                let (least, most) = order::<BITS, SIGNED>(a, b);
                low(c.wrapping_add(most.wrapping_sub(least)), BITS)
            }),
            W::Div => io.two(|a, b| low(divide::<BITS, SIGNED>(a, b), BITS)),
            W::Rem => io.two(|a, b| low(remainder::<BITS, SIGNED>(a, b), BITS)),
            W::Abs => io.one(|a| low((extend::<BITS, SIGNED>(a) as i64).unsigned_abs(), BITS)),
            W::Neg => io.one(|a| low(a.wrapping_neg(), BITS)),
            W::Min => io.two(|a, b| relu::<BITS>(order::<BITS, SIGNED>(a, b).0, self.relu)),
            W::Max => io.two(|a, b| relu::<BITS>(order::<BITS, SIGNED>(a, b).1, self.relu)),
            W::Mul24Lo => io.two(|a, b| low(product24::<SIGNED>(a, b), 32)),
            W::Mul24Hi => io.two(|a, b| low(product24::<SIGNED>(a, b) >> 16, 32)),
            W::Mad24Lo => io.three(|a, b, c| low(product24::<SIGNED>(a, b).wrapping_add(c), 32)),
            W::Mad24Hi => io.three(|a, b, c| {
                add::<32, SIGNED>(low(product24::<SIGNED>(a, b) >> 16, 32), c, self.saturate)
            }),
        }
    }

    fn packed<const SIGNED: bool>(self, io: &mut Io<'_>) {
        let halves = |a: u64, b: u64, f: &dyn Fn(u64, u64) -> u64| {
            f(a & 0xffff, b & 0xffff) | f(a >> 16 & 0xffff, b >> 16 & 0xffff) << 16
        };
        match self.operator {
            Operator::Add => {
                io.two(|a, b| halves(a, b, &|a, b| add::<16, SIGNED>(a, b, self.saturate)))
            }
            Operator::Sub => {
                io.two(|a, b| halves(a, b, &|a, b| sub::<16, SIGNED>(a, b, self.saturate)))
            }
            Operator::Min => {
                io.two(|a, b| {
                    halves(a, b, &|a, b| relu::<16>(order::<16, SIGNED>(a, b).0, self.relu))
                });
            }
            _ => io.two(|a, b| {
                halves(a, b, &|a, b| relu::<16>(order::<16, SIGNED>(a, b).1, self.relu))
            }),
        }
    }
}

/// Returns the low bits of `x`.
#[inline(always)]
pub(super) const fn low(x: u64, bits: u32) -> u64 {
    x & (u64::MAX >> (64 - bits))
}

/// Extends the low bits of `x` to 64 bits, with the sign if the type is signed.
#[inline(always)]
pub(super) const fn extend<const BITS: u32, const SIGNED: bool>(x: u64) -> u64 {
    if SIGNED { ((x << (64 - BITS)) as i64 >> (64 - BITS)) as u64 } else { low(x, BITS) }
}

/// Returns the value of the low bits of `x`.
#[inline(always)]
fn number<const BITS: u32, const SIGNED: bool>(x: u64) -> i128 {
    let x = extend::<BITS, SIGNED>(x);
    if SIGNED { i128::from(x as i64) } else { i128::from(x) }
}

/// Returns the sum, wrapped or clamped to the type's range.
#[inline(always)]
fn add<const BITS: u32, const SIGNED: bool>(a: u64, b: u64, saturate: bool) -> u64 {
    fit::<BITS, SIGNED>(number::<BITS, SIGNED>(a) + number::<BITS, SIGNED>(b), saturate)
}

/// Returns the difference, wrapped or clamped to the type's range.
#[inline(always)]
fn sub<const BITS: u32, const SIGNED: bool>(a: u64, b: u64, saturate: bool) -> u64 {
    fit::<BITS, SIGNED>(number::<BITS, SIGNED>(a) - number::<BITS, SIGNED>(b), saturate)
}

#[inline(always)]
fn fit<const BITS: u32, const SIGNED: bool>(x: i128, saturate: bool) -> u64 {
    let (least, most) =
        if SIGNED { (-(1i128 << (BITS - 1)), (1 << (BITS - 1)) - 1) } else { (0, (1 << BITS) - 1) };
    low((if saturate { x.clamp(least, most) } else { x }) as u64, BITS)
}

/// Returns the high half of the product.
#[inline(always)]
fn high<const BITS: u32, const SIGNED: bool>(a: u64, b: u64) -> u64 {
    let a = extend::<BITS, SIGNED>(a);
    let b = extend::<BITS, SIGNED>(b);
    if BITS < 64 {
        low(a.wrapping_mul(b) >> BITS, BITS)
    } else if SIGNED {
        ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
    } else {
        ((u128::from(a) * u128::from(b)) >> 64) as u64
    }
}

/// Returns the lesser and the greater, each extended to 64 bits.
#[inline(always)]
fn order<const BITS: u32, const SIGNED: bool>(a: u64, b: u64) -> (u64, u64) {
    let a = extend::<BITS, SIGNED>(a);
    let b = extend::<BITS, SIGNED>(b);
    let less = if SIGNED { (a as i64) < b as i64 } else { a < b };
    if less { (a, b) } else { (b, a) }
}

/// Returns the quotient. The ISA leaves a division by zero open; compiled code returns all ones.
#[inline(always)]
fn divide<const BITS: u32, const SIGNED: bool>(a: u64, b: u64) -> u64 {
    let a = extend::<BITS, SIGNED>(a);
    let b = extend::<BITS, SIGNED>(b);
    if b == 0 {
        u64::MAX
    } else if SIGNED {
        (a as i64).wrapping_div(b as i64) as u64
    } else {
        a / b
    }
}

/// Returns the remainder, with the dividend's sign. By zero it is all ones, as the quotient is.
#[inline(always)]
fn remainder<const BITS: u32, const SIGNED: bool>(a: u64, b: u64) -> u64 {
    let a = extend::<BITS, SIGNED>(a);
    let b = extend::<BITS, SIGNED>(b);
    if b == 0 {
        u64::MAX
    } else if SIGNED {
        (a as i64).wrapping_rem(b as i64) as u64
    } else {
        a % b
    }
}

/// Returns the low bits of `x`, or 0 for a negative value.
#[inline(always)]
fn relu<const BITS: u32>(x: u64, relu: bool) -> u64 {
    if relu && (x as i64) < 0 { 0 } else { low(x, BITS) }
}

/// Returns the 48-bit product of the low 24 bits of each factor, extended to 64 bits.
#[inline(always)]
fn product24<const SIGNED: bool>(a: u64, b: u64) -> u64 {
    extend::<24, SIGNED>(a).wrapping_mul(extend::<24, SIGNED>(b))
}
