//! Bit instructions: counts, searches, fields and masks; the dot products of packed integers.

use super::integer::low;
use super::io::Io;
use super::modifiers::{Modifiers, flag};
use super::{Arith, Operands, Operation};
use dmr_ptx_syntax::Type;

/// The operation, without its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Popc,
    Clz,
    Bfind { shift_amount: bool },
    Fns,
    Brev,
    Bfe,
    Bfi,
    Bmsk { clamp: bool },
    Szext { clamp: bool },
    Dp4a { first: Type, second: Type },
    Dp2a { first: Type, second: Type, high: bool },
}

/// A bit operation on one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    operator: Operator,
    ty: Type,
}

/// Decodes a bit instruction.
pub(super) fn decode(words: &Modifiers<'_>) -> Result<Arith, String> {
    use Type::{B32, B64, S32, S64, U32, U64};
    if matches!(words.name, "dp4a" | "dp2a") {
        return decode_dot(words);
    }
    let ty = words.one_type()?;
    let clamp = || match (words.has(flag::CLAMP), words.has(flag::WRAP)) {
        (true, false) => Ok(true),
        (false, true) => Ok(false),
        _ => Err(format!("{} needs .clamp or .wrap", words.name)),
    };
    let plain: &[Type] = &[B32, B64];
    let (operator, types, allowed, operands) = match words.name {
        "popc" => (Operator::Popc, plain, 0, Operands::new(U32, &[ty])),
        "clz" => (Operator::Clz, plain, 0, Operands::new(U32, &[ty])),
        "bfind" => {
            let shift_amount = words.has(flag::SHIFTAMT);
            let all: &[Type] = &[U32, U64, S32, S64];
            (Operator::Bfind { shift_amount }, all, flag::SHIFTAMT, Operands::new(U32, &[ty]))
        }
        "fns" => (Operator::Fns, &[B32][..], 0, Operands::new(B32, &[B32, U32, S32])),
        "brev" => (Operator::Brev, plain, 0, Operands::new(ty, &[ty])),
        "bfe" => (Operator::Bfe, &[U32, U64, S32, S64][..], 0, Operands::new(ty, &[ty, U32, U32])),
        "bfi" => (Operator::Bfi, plain, 0, Operands::new(ty, &[ty, ty, U32, U32])),
        "bmsk" => {
            let operator = Operator::Bmsk { clamp: clamp()? };
            (operator, &[B32][..], flag::CLAMP | flag::WRAP, Operands::new(B32, &[U32, U32]))
        }
        _ => {
            let operator = Operator::Szext { clamp: clamp()? };
            (operator, &[U32, S32][..], flag::CLAMP | flag::WRAP, Operands::new(ty, &[ty, U32]))
        }
    };
    words.only(allowed)?;
    if !types.contains(&ty) {
        return words.wrong_type(ty);
    }
    Ok(Arith { operation: Operation::Bits(Op { operator, ty }), operands })
}

fn decode_dot(words: &Modifiers<'_>) -> Result<Arith, String> {
    let &[first, second] = words.types() else {
        return Err(format!("{} needs two types", words.name));
    };
    if ![first, second].iter().all(|ty| matches!(ty, Type::U32 | Type::S32)) {
        return words.wrong_type(first);
    }
    let ty = if first == second { first } else { Type::S32 };
    let operator = if words.name == "dp4a" {
        words.only(0)?;
        Operator::Dp4a { first, second }
    } else {
        words.only(flag::LO | flag::HI)?;
        if words.has(flag::LO) == words.has(flag::HI) {
            return Err("dp2a needs .lo or .hi".to_owned());
        }
        Operator::Dp2a { first, second, high: words.has(flag::HI) }
    };
    let operands = Operands::new(ty, &[Type::B32, Type::B32, ty]);
    Ok(Arith { operation: Operation::Bits(Op { operator, ty }), operands })
}

impl Op {
    pub(super) fn moves_bits(self) -> bool {
        matches!(self.operator, Operator::Brev | Operator::Bfe | Operator::Bfi)
    }

    pub(super) fn eval(self, io: &mut Io<'_>) {
        let bits = self.ty.bytes() as u32 * 8;
        let signed = self.ty.is_signed();
        match self.operator {
            Operator::Popc => io.one(|a| u64::from(low(a, bits).count_ones())),
            Operator::Clz => io.one(|a| u64::from(low(a, bits).leading_zeros() + bits - 64)),
            Operator::Bfind { shift_amount } => io.one(|a| find(a, bits, signed, shift_amount)),
            Operator::Fns => io.three(nth_set),
            Operator::Brev => io.one(|a| a.reverse_bits() >> (64 - bits)),
            Operator::Bfe => {
                io.three(|a, position, length| extract(a, position, length, bits, signed))
            }
            Operator::Bfi => io.four(|a, b, position, length| insert(a, b, position, length, bits)),
            Operator::Bmsk { clamp } => io.two(|position, length| mask(position, length, clamp)),
            Operator::Szext { clamp } => {
                io.two(|a, length| sign_or_zero_extend(a, length, clamp, signed))
            }
            Operator::Dp4a { first, second } => io.three(|a, b, c| {
                let products = (0..4).map(|n| byte(a, n, first).wrapping_mul(byte(b, n, second)));
                low(products.fold(c, |sum, product| sum.wrapping_add(product as u64)), 32)
            }),
            Operator::Dp2a { first, second, high } => io.three(|a, b, c| {
                let offset = if high { 2 } else { 0 };
                let products =
                    (0..2).map(|n| half(a, n, first).wrapping_mul(byte(b, n + offset, second)));
                low(products.fold(c, |sum, product| sum.wrapping_add(product as u64)), 32)
            }),
        }
    }
}

/// Returns the position of the highest bit that is not the sign, or how far it is from the top; all
/// ones if none.
fn find(a: u64, bits: u32, signed: bool, shift_amount: bool) -> u64 {
    let a = low(if signed && a >> (bits - 1) & 1 != 0 { !a } else { a }, bits);
    match a.checked_ilog2() {
        None => 0xffff_ffff,
        Some(position) if shift_amount => u64::from(bits - 1 - position),
        Some(position) => u64::from(position),
    }
}

/// Returns the position of the n-th set bit from `base` on, upwards or downwards; all ones if there
/// is none.
fn nth_set(mask: u64, base: u64, offset: u64) -> u64 {
    let none = 0xffff_ffff;
    let offset = offset as u32 as i32;
    if offset == i32::MIN {
        return 0;
    }
    if base > 31 {
        return none;
    }
    if offset == 0 {
        return if mask >> base & 1 != 0 { base } else { none };
    }
    let mut left = offset.unsigned_abs();
    let mut position = base as i64;
    while (0..32).contains(&position) {
        if mask >> position & 1 != 0 {
            left -= 1;
            if left == 0 {
                return position as u64;
            }
        }
        position += i64::from(offset.signum());
    }
    none
}

/// Returns a position or a length: in 32 bits its low 8 bits count; in 64 bits, which are compiled
/// to several instructions, all do.
fn amount(x: u64, bits: u32) -> u32 {
    if bits == 32 { x as u32 & 0xff } else { (x as u32).min(0xff) }
}

/// Returns a field of `a`, with copies of its sign bit above; a field over the top has copies of
/// the top bit.
fn extract(a: u64, position: u64, length: u64, bits: u32, signed: bool) -> u64 {
    let position = amount(position, bits);
    let length = amount(length, bits);
    let sign_at = (position + length).saturating_sub(1).min(bits - 1);
    let sign = signed && length != 0 && a >> sign_at & 1 != 0;
    let count = length.min(bits.saturating_sub(position));
    let field = if count == 0 { 0 } else { low(a >> position, count) };
    let above = if count == 0 { u64::MAX } else { !low(u64::MAX, count) };
    low(if sign { field | above } else { field }, bits)
}

/// Returns `b` with the low bits of `a` as its field.
fn insert(a: u64, b: u64, position: u64, length: u64, bits: u32) -> u64 {
    let position = amount(position, bits);
    let length = amount(length, bits);
    let count = length.min(bits.saturating_sub(position));
    if count == 0 {
        return b;
    }
    let field = low(u64::MAX, count) << position;
    b & !field | a << position & field
}

/// Returns `length` ones from `position` on.
fn mask(position: u64, length: u64, clamp: bool) -> u64 {
    let from = position & 31;
    let count = length & 31;
    if clamp && position >= 32 {
        return 0;
    }
    let to = if clamp && length >= 32 { 32 } else { (from + count).min(32) };
    (1u64 << to) - (1u64 << from)
}

/// Returns the low `length` bits of `a`, extended with the highest of them or with zeros.
fn sign_or_zero_extend(a: u64, length: u64, clamp: bool, signed: bool) -> u64 {
    let count = length as u32 & 31;
    if clamp && length >= 32 {
        return a;
    }
    if count == 0 {
        return 0;
    }
    let kept = low(a, count);
    let negative = signed && kept >> (count - 1) != 0;
    if negative { low(kept | u64::MAX << count, 32) } else { kept }
}

/// Returns byte `n` of `x`.
fn byte(x: u64, n: u32, ty: Type) -> i64 {
    let byte = (x >> (8 * n)) as u8;
    if ty == Type::S32 { i64::from(byte as i8) } else { i64::from(byte) }
}

/// Returns the 16-bit half `n` of `x`.
fn half(x: u64, n: u32, ty: Type) -> i64 {
    let half = (x >> (16 * n)) as u16;
    if ty == Type::S32 { i64::from(half as i16) } else { i64::from(half) }
}
