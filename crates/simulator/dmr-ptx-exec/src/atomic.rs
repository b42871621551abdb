//! The changes that atomic instructions make to one element.

use dmr_ptx_arith::{self as arith, Arith};
use dmr_ptx_arith::{Lanes, WARP};
use dmr_ptx_syntax::Type;

/// The computation of the new value of an element.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Exchange,
    CompareSwap,
    And,
    Or,
    Xor,
    Add,
    Increment,
    Decrement,
    /// The minimum of signed numbers.
    MinSigned,
    MaxSigned,
    Min,
    Max,
    AddF32,
    AddF64,
    /// Halves and pairs of halves.
    Arith(Arith),
}

impl Change {
    /// Decodes the operation `name` of `atom` or `red` on `ty`.
    pub(super) fn decode(name: &str, ty: Type) -> Option<Self> {
        let float = matches!(ty, Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2);
        Some(match name {
            "exch" => Self::Exchange,
            "cas" => Self::CompareSwap,
            _ if ty == Type::B128 => return None,
            "and" => Self::And,
            "or" => Self::Or,
            "xor" => Self::Xor,
            "inc" => Self::Increment,
            "dec" => Self::Decrement,
            "add" if ty == Type::F32 => Self::AddF32,
            "add" if ty == Type::F64 => Self::AddF64,
            "add" | "min" | "max" if float => {
                let modifiers: &[&str] = match (name, ty) {
                    ("add", Type::F16) => &["rn", "f16"],
                    ("add", Type::F16x2) => &["rn", "f16x2"],
                    ("add", Type::Bf16) => &["rn", "bf16"],
                    ("add", _) => &["rn", "bf16x2"],
                    (_, Type::F16) => &["f16"],
                    (_, Type::F16x2) => &["f16x2"],
                    (_, Type::Bf16) => &["bf16"],
                    (_, _) => &["bf16x2"],
                };
                Self::Arith(arith::decode(name, modifiers)?.ok()?)
            }
            "add" => Self::Add,
            "min" if ty.is_signed() => Self::MinSigned,
            "max" if ty.is_signed() => Self::MaxSigned,
            "min" => Self::Min,
            "max" => Self::Max,
            _ => return None,
        })
    }

    /// Returns the new value of an element of `bits` bits, 64 or fewer, in global or in shared
    /// memory.
    #[inline]
    pub(super) fn apply(
        &self,
        old: u64,
        operand: u64,
        swap: u64,
        bits: u32,
        is_global: bool,
    ) -> u64 {
        let mask = u64::MAX >> (64 - bits.clamp(1, 64));
        let signed = |value: u64| (value << (64 - bits.clamp(1, 64))) as i64;
        let operand = operand & mask;
        let new = match self {
            Self::Exchange => operand,
            Self::CompareSwap if old == operand => swap,
            Self::CompareSwap => old,
            Self::And => old & operand,
            Self::Or => old | operand,
            Self::Xor => old ^ operand,
            Self::Add => old.wrapping_add(operand),
            Self::Increment if old >= operand => 0,
            Self::Increment => old + 1,
            Self::Decrement if old == 0 || old > operand => operand,
            Self::Decrement => old - 1,
            Self::MinSigned if signed(old) <= signed(operand) => old,
            Self::MaxSigned if signed(old) >= signed(operand) => old,
            Self::MinSigned | Self::MaxSigned => operand,
            Self::Min => old.min(operand),
            Self::Max => old.max(operand),
            Self::AddF32 => {
                // Subnormal numbers are zeros in global memory, and numbers in shared memory.
                let value = |value: f32| {
                    if is_global && value.is_subnormal() { 0.0f32.copysign(value) } else { value }
                };
                let [old, operand] = [old, operand].map(|bits| f32::from_bits(bits as u32));
                let sum = value(value(old) + value(operand));
                if sum.is_nan() { 0x7fff_ffff } else { u64::from(sum.to_bits()) }
            }
            Self::AddF64 => {
                // Global memory's own unit returns a NaN as it is, the operand's first.
                let nan = [operand, old].into_iter().find(|bits| f64::from_bits(*bits).is_nan());
                match nan {
                    Some(nan) if is_global => nan,
                    _ => arith::added_double(old, operand),
                }
            }
            Self::Arith(arith) => apply_arith(arith, old, operand),
        };
        new & mask
    }

    /// Returns the new value of an element of 128 bits, which is only exchanged.
    pub(super) fn apply_wide(&self, old: u128, operand: u128, swap: u128) -> u128 {
        match self {
            Self::CompareSwap if old == operand => swap,
            Self::CompareSwap => old,
            _ => operand,
        }
    }
}

/// Runs an operation of two operands on one lane.
fn apply_arith(arith: &Arith, old: u64, operand: u64) -> u64 {
    let sources: [Lanes; 2] = [[old; WARP], [operand; WARP]];
    let mut result = [0; WARP];
    let mut second = [0; WARP];
    let mut carry = 0;
    arith.eval(&[&sources[0], &sources[1]], &mut result, &mut second, 1, &mut carry);
    result[0]
}
