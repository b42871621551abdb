//! Logic, shifts, byte permutation and selection: `and` to `lop3`, `shl`, `shr`, `shf`, `prmt`,
//! `mov`, `selp`.

use super::integer::low;
use super::io::Io;
use super::modifiers::{Combine, Modifiers, flag};
use super::{Arith, Operands, Operation};
use dmr_ptx_syntax::Type;

/// A mode of `prmt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permute {
    Selector,
    F4e,
    B4e,
    Rc8,
    Ecl,
    Ecr,
    Rc16,
}

/// The operation, without its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    And,
    Or,
    Xor,
    Not,
    Cnot,
    Lop3 { combine: Option<Combine> },
    Shl,
    Shr,
    Shf { left: bool, clamp: bool },
    Prmt(Permute),
    Mov,
    Selp,
}

/// A logic operation on one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    operator: Operator,
    ty: Type,
}

/// Decodes a logic, shift or selection instruction.
pub(super) fn decode(words: &Modifiers<'_>) -> Result<Arith, String> {
    let mut words = *words;
    use Type::{B16, B32, B64, F32, F64, Pred, S16, S32, S64, U16, U32, U64};
    const UNTYPED: &[Type] = &[B16, B32, B64];
    const WITH_PREDICATE: &[Type] = &[Pred, B16, B32, B64];
    const SHIFTED: &[Type] = &[B16, B32, B64, U16, U32, U64, S16, S32, S64];
    const MOVED: &[Type] = &[Pred, B16, B32, B64, U16, U32, U64, S16, S32, S64, F32, F64];
    let ty = words.one_type()?;
    let combine = words.combine.take();
    let (operator, types, allowed, operands) = match words.name {
        "and" => (Operator::And, WITH_PREDICATE, 0, Operands::new(ty, &[ty; 2])),
        "or" => (Operator::Or, WITH_PREDICATE, 0, Operands::new(ty, &[ty; 2])),
        "xor" => (Operator::Xor, WITH_PREDICATE, 0, Operands::new(ty, &[ty; 2])),
        "not" => (Operator::Not, WITH_PREDICATE, 0, Operands::new(ty, &[ty])),
        "cnot" => (Operator::Cnot, UNTYPED, 0, Operands::new(ty, &[ty])),
        "lop3" => {
            let operands = match combine {
                None => Operands::new(ty, &[ty; 4]),
                Some(_) => Operands::new(ty, &[ty, ty, ty, ty, Pred]).with_predicate(),
            };
            (Operator::Lop3 { combine }, &[B32][..], 0, operands)
        }
        "shl" => (Operator::Shl, UNTYPED, 0, Operands::new(ty, &[ty, U32])),
        "shr" => (Operator::Shr, SHIFTED, 0, Operands::new(ty, &[ty, U32])),
        "shf" => {
            let left = words.has(flag::LEFT);
            let clamp = words.has(flag::CLAMP);
            if left == words.has(flag::RIGHT) || clamp == words.has(flag::WRAP) {
                return Err("shf needs .l or .r, and .clamp or .wrap".to_owned());
            }
            let allowed = flag::LEFT | flag::RIGHT | flag::CLAMP | flag::WRAP;
            (
                Operator::Shf { left, clamp },
                &[B32][..],
                allowed,
                Operands::new(ty, &[B32, B32, U32]),
            )
        }
        "prmt" => {
            let (mode, allowed) = permute_mode(&words);
            (Operator::Prmt(mode), &[B32][..], allowed, Operands::new(B32, &[B32; 3]))
        }
        "mov" => (Operator::Mov, MOVED, 0, Operands::new(ty, &[ty])),
        _ => (Operator::Selp, MOVED, 0, Operands::new(ty, &[ty, ty, Pred])),
    };
    if combine.is_some() && !matches!(operator, Operator::Lop3 { .. }) {
        return Err(format!("{} has no predicate to combine with", words.name));
    }
    words.only(allowed)?;
    if !types.contains(&ty) || operator == Operator::Selp && ty == Pred {
        return words.wrong_type(ty);
    }
    Ok(Arith { operation: Operation::Logic(Op { operator, ty }), operands })
}

fn permute_mode(words: &Modifiers<'_>) -> (Permute, u32) {
    let modes = [
        (flag::F4E, Permute::F4e),
        (flag::B4E, Permute::B4e),
        (flag::RC8, Permute::Rc8),
        (flag::ECL, Permute::Ecl),
        (flag::ECR, Permute::Ecr),
        (flag::RC16, Permute::Rc16),
    ];
    let found = modes.into_iter().find(|(bit, _)| words.has(*bit));
    found.map_or((Permute::Selector, 0), |(bit, mode)| (mode, bit))
}

impl Op {
    pub(super) fn moves_bits(self) -> bool {
        self.operator != Operator::Cnot
    }

    pub(super) fn eval(self, io: &mut Io<'_>) {
        let bits = if self.ty == Type::Pred { 1 } else { self.ty.bytes() as u32 * 8 };
        match self.operator {
            Operator::And => io.two(|a, b| a & b),
            Operator::Or => io.two(|a, b| a | b),
            Operator::Xor => io.two(|a, b| a ^ b),
            Operator::Not => io.one(|a| low(!a, bits)),
            Operator::Cnot => io.one(|a| u64::from(a == 0)),
            Operator::Lop3 { combine: None } => io.four(lop3),
            Operator::Lop3 { combine: Some(combine) } => io.both(|[a, b, c, table, p, _]| {
                let result = lop3(a, b, c, table);
                (result, u64::from(combine.apply(result != 0, p != 0)))
            }),
            Operator::Shl => {
                io.two(|a, n| if n as u32 >= bits { 0 } else { low(a << (n as u32), bits) })
            }
            Operator::Shr if self.ty.is_signed() => io.two(|a, n| {
                let value = (a << (64 - bits)) as i64 >> (64 - bits);
                low((value >> (n as u32).min(63)) as u64, bits)
            }),
            Operator::Shr => io.two(|a, n| if n as u32 >= bits { 0 } else { a >> (n as u32) }),
            Operator::Shf { left, clamp } => io.three(|a, b, n| {
                let n = if clamp { (n as u32).min(32) } else { n as u32 & 31 };
                let value = b << 32 | a;
                if left { value << n >> 32 } else { low(value >> n, 32) }
            }),
            Operator::Prmt(mode) => io.three(|a, b, selector| permute(a, b, selector as u32, mode)),
            Operator::Mov => io.one(|a| a),
            Operator::Selp => io.three(|a, b, p| if p != 0 { a } else { b }),
        }
    }
}

impl Combine {
    /// Combines the outcome of a comparison with a predicate.
    pub(super) const fn apply(self, outcome: bool, predicate: bool) -> bool {
        match self {
            Self::And => outcome & predicate,
            Self::Or => outcome | predicate,
            Self::Xor => outcome ^ predicate,
        }
    }
}

/// Returns the function of three bits that `table` gives: its bit `4a + 2b + c`.
fn lop3(a: u64, b: u64, c: u64, table: u64) -> u64 {
    let pick = |n: u32, x: u64| if n != 0 { x } else { !x };
    let mut result = 0;
    for row in 0..8 {
        if table >> row & 1 != 0 {
            result |= pick(row & 4, a) & pick(row & 2, b) & pick(row & 1, c);
        }
    }
    low(result, 32)
}

/// Returns four bytes of the eight of `a` and `b`.
fn permute(a: u64, b: u64, selector: u32, mode: Permute) -> u64 {
    let bytes = b << 32 | a;
    // The bytes to select, the lowest last; each row is for one value of the selector's low two
    // bits.
    let row = selector as usize & 3;
    let selected = match mode {
        Permute::Selector => selector,
        Permute::F4e => [0x3210, 0x4321, 0x5432, 0x6543][row],
        Permute::B4e => [0x5670, 0x6701, 0x7012, 0x0123][row],
        Permute::Rc8 => [0x0000, 0x1111, 0x2222, 0x3333][row],
        Permute::Ecl => [0x3210, 0x3211, 0x3222, 0x3333][row],
        Permute::Ecr => [0x0000, 0x1110, 0x2210, 0x3210][row],
        Permute::Rc16 => [0x1010, 0x3232, 0x1010, 0x3232][row],
    };
    let mut result = 0;
    for place in 0..4 {
        let nibble = selected >> (4 * place) & 0xf;
        let byte = (bytes >> (8 * (nibble & 7))) as u8;
        let byte = if nibble & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
        result |= u64::from(byte) << (8 * place);
    }
    result
}
