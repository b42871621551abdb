//! `cvt.pack`: two integers, clamped to a narrow type, into one register.

use super::convert::{clamp, number};
use super::integer::low;
use super::io::Io;
use super::modifiers::{Modifiers, flag};
use super::{Arith, Operands, Operation};
use dmr_ptx_syntax::Type;

/// Packs two `s32` as values of `bits` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    bits: u32,
    signed: bool,
}

pub(super) fn decode(words: &Modifiers<'_>) -> Result<Arith, String> {
    words.only(flag::PACK | flag::SAT)?;
    let (to, from, narrow) = match *words.types() {
        [to, from] => (to, from, false),
        [to, from, Type::B32] => (to, from, true),
        _ => return Err("cvt.pack needs two or three types".to_owned()),
    };
    let fits = if narrow {
        matches!(to, Type::U8 | Type::S8)
    } else {
        matches!(to, Type::U16 | Type::S16)
    };
    if !fits || from != Type::S32 || !words.has(flag::SAT) {
        return Err(format!("cvt.pack is not supported from {from:?} to {to:?}"));
    }
    let op = Op { bits: to.bytes() as u32 * 8, signed: to.is_signed() };
    let sources =
        if narrow { &[Type::S32, Type::S32, Type::B32][..] } else { &[Type::S32, Type::S32] };
    Ok(Arith { operation: Operation::Pack(op), operands: Operands::new(Type::B32, sources) })
}

impl Op {
    pub(super) fn eval(self, io: &mut Io<'_>) {
        let Self { bits, signed } = self;
        // The first operand is the upper value; what is left above the two comes from the low bits
        // of the third.
        io.three(|a, b, c| {
            let narrow = |x| low(clamp(number(x, 32, true), bits, signed), bits);
            low(narrow(b) | narrow(a) << bits | c << (2 * bits), 32)
        });
    }
}
