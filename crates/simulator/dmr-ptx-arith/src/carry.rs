//! Arithmetic with the carry flag of each lane: `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`,
//! `madc`.
//!
//! A subtraction clears the flag if it borrows: it adds the complement. Compilers read a borrow by
//! `addc`.

use super::integer::low;
use super::io::Io;
use super::modifiers::{Modifiers, flag};
use super::{Arith, Operands, Operation};
use crate::Mask;
use dmr_ptx_syntax::Type;

/// The operation, without its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Add,
    Sub,
    MadLo,
    MadHi,
}

/// An operation that reads the carry flag, writes it, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    operator: Operator,
    ty: Type,
    reads: bool,
    writes: bool,
}

/// Decodes an instruction that uses the carry flag.
pub(super) fn decode(words: &Modifiers<'_>) -> Result<Arith, String> {
    let ty = words.one_type()?;
    if !matches!(ty, Type::U32 | Type::S32 | Type::U64 | Type::S64 | Type::B32 | Type::B64) {
        return words.wrong_type(ty);
    }
    let (operator, allowed, sources) = match words.name {
        "add" | "addc" => (Operator::Add, 0, 2),
        "sub" | "subc" => (Operator::Sub, 0, 2),
        _ if words.has(flag::HI) => (Operator::MadHi, flag::HI, 3),
        _ if words.has(flag::LO) => (Operator::MadLo, flag::LO, 3),
        _ => return Err(format!("{} needs .lo or .hi", words.name)),
    };
    words.only(allowed | flag::CC)?;
    let op = Op { operator, ty, reads: words.name.ends_with('c'), writes: words.has(flag::CC) };
    let operands = Operands::new(ty, [ty; 3].get(..sources).unwrap_or(&[]));
    Ok(Arith { operation: Operation::Carry(op), operands })
}

impl Op {
    pub(super) fn eval(self, io: &mut Io<'_>, flags: &mut Mask) {
        let bits = self.ty.bytes() as u32 * 8;
        io.three_with_flag(flags, |a, b, c, carry| {
            let carry_in = u64::from(carry && self.reads);
            let borrow_in = u64::from(!carry && self.reads);
            let (result, carry_out) = match self.operator {
                Operator::Add => sum(a, b, carry_in, bits),
                Operator::Sub => {
                    let (result, borrow_out) = difference(a, b, borrow_in, bits);
                    (result, !borrow_out)
                }
                Operator::MadLo => sum(low(a.wrapping_mul(b), bits), c, carry_in, bits),
                Operator::MadHi => sum(high(a, b, self.ty), c, carry_in, bits),
            };
            (result, if self.writes { carry_out } else { carry })
        });
    }
}

/// Returns `a + b + carry`, and whether it carries out of the width.
fn sum(a: u64, b: u64, carry: u64, bits: u32) -> (u64, bool) {
    let sum = u128::from(a) + u128::from(b) + u128::from(carry);
    (low(sum as u64, bits), sum >> bits != 0)
}

/// Returns `a - (b + borrow)`, and whether it borrows.
fn difference(a: u64, b: u64, borrow: u64, bits: u32) -> (u64, bool) {
    let subtrahend = u128::from(b) + u128::from(borrow);
    (low((u128::from(a)).wrapping_sub(subtrahend) as u64, bits), u128::from(a) < subtrahend)
}

/// Returns the high half of the product.
fn high(a: u64, b: u64, ty: Type) -> u64 {
    match ty {
        Type::S32 => low(((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u64, 32),
        Type::S64 => ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64,
        Type::U64 | Type::B64 => ((u128::from(a) * u128::from(b)) >> 64) as u64,
        _ => (low(a, 32) * low(b, 32)) >> 32,
    }
}
