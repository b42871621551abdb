//! SIMD video instructions, which the byte and half-word intrinsics of CUDA compile to: `vadd2` to
//! `vset4`.

use super::integer::low;
use super::io::Io;
use super::modifiers::{Comparison, Modifiers, flag};
use super::{Arith, Operands, Operation};
use dmr_ptx_syntax::Type;

/// The operation on one byte or half-word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Add,
    Sub,
    Average,
    AbsoluteDifference,
    Min,
    Max,
    Set(Comparison),
}

/// An operation on four bytes or two half-words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    operator: Operator,
    bits: u32,
    /// The signedness of the results, of the first and of the second operands.
    signed: [bool; 3],
    saturate: bool,
    /// Adds all results to the third operand.
    accumulate: bool,
}

/// Decodes an instruction of these names; those on scalars are refused.
pub(super) fn decode(words: &Modifiers<'_>) -> Result<Arith, String> {
    let mut words = *words;
    let plain = words.name.trim_end_matches(['2', '4']);
    let bits = match words.name.get(plain.len()..) {
        Some("2") => 16,
        Some("4") => 8,
        _ => {
            return Err(format!("{}: video instructions on scalars are not supported", words.name));
        }
    };
    let comparison = words.comparison.take();
    let (operator, types) = match (plain, words.types()) {
        ("vset", &[a, b]) => {
            let comparison =
                comparison.ok_or_else(|| format!("{} needs a comparison", words.name))?;
            (Operator::Set(comparison), [Type::U32, a, b])
        }
        ("vadd", &[d, a, b]) => (Operator::Add, [d, a, b]),
        ("vsub", &[d, a, b]) => (Operator::Sub, [d, a, b]),
        ("vavrg", &[d, a, b]) => (Operator::Average, [d, a, b]),
        ("vabsdiff", &[d, a, b]) => (Operator::AbsoluteDifference, [d, a, b]),
        ("vmin", &[d, a, b]) => (Operator::Min, [d, a, b]),
        ("vmax", &[d, a, b]) => (Operator::Max, [d, a, b]),
        _ => return Err(format!("{} is not supported with these types", words.name)),
    };
    if !types.iter().all(|ty| matches!(ty, Type::U32 | Type::S32)) {
        return Err(format!("{} has types other than .u32 and .s32", words.name));
    }
    if matches!(operator, Operator::Set(comparison) if !is_ordered(comparison)) {
        return Err(format!("{} does not have this comparison", words.name));
    }
    let saturating = if plain == "vset" { 0 } else { flag::SAT };
    words.only(saturating | flag::ACCUMULATE)?;
    let op = Op {
        operator,
        bits,
        signed: types.map(|ty| ty == Type::S32),
        saturate: words.has(flag::SAT),
        accumulate: words.has(flag::ACCUMULATE),
    };
    if op.saturate && op.accumulate {
        return Err(format!("{} has .sat or .add, not both", words.name));
    }
    Ok(Arith {
        operation: Operation::Video(op),
        operands: Operands::new(types[0], &[types[1], types[2], Type::B32]),
    })
}

const fn is_ordered(comparison: Comparison) -> bool {
    use Comparison::{Eq, Ge, Gt, Le, Lt, Ne};
    matches!(comparison, Eq | Ne | Lt | Le | Gt | Ge)
}

impl Op {
    pub(super) fn eval(self, io: &mut Io<'_>) {
        io.three(|a, b, c| {
            let mut sum = c;
            let mut packed = 0;
            for shift in (0..32).step_by(self.bits as usize) {
                let result = self.element(
                    value(a >> shift, self.bits, self.signed[1]),
                    value(b >> shift, self.bits, self.signed[2]),
                );
                sum = sum.wrapping_add(result as u64);
                packed |= low(self.fit(result) as u64, self.bits) << shift;
            }
            low(if self.accumulate { sum } else { packed }, 32)
        });
    }

    fn element(self, a: i64, b: i64) -> i64 {
        match self.operator {
            Operator::Add => a + b,
            Operator::Sub => a - b,
            // Rounds half up, away from zero for a negative sum.
            Operator::Average => (a + b + i64::from(a + b >= 0)) >> 1,
            Operator::AbsoluteDifference => (a - b).abs(),
            Operator::Min => a.min(b),
            Operator::Max => a.max(b),
            Operator::Set(comparison) => i64::from(match comparison {
                Comparison::Eq => a == b,
                Comparison::Ne => a != b,
                Comparison::Lt => a < b,
                Comparison::Le => a <= b,
                Comparison::Gt => a > b,
                _ => a >= b,
            }),
        }
    }

    /// Clamps a result to its type, if the instruction does.
    fn fit(self, x: i64) -> i64 {
        let (least, most) = if self.signed[0] {
            (-(1i64 << (self.bits - 1)), (1 << (self.bits - 1)) - 1)
        } else {
            (0, (1 << self.bits) - 1)
        };
        if self.saturate { x.clamp(least, most) } else { x }
    }
}

/// Returns the value of the low bits of `x`.
fn value(x: u64, bits: u32, signed: bool) -> i64 {
    let unused = 64 - bits;
    if signed { (x << unused) as i64 >> unused } else { (x << unused >> unused) as i64 }
}
