//! `redux.sync`: one value from a register of all lanes of a mask.

use super::lanes_of;
use super::{Defect, Operand, Operands, vote};
use crate::{Lanes, Mask};
use dmr_ptx_syntax::Type;

/// The operation of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    /// The sum, modulo 2^32.
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// `redux.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduce {
    pub(crate) fold: Fold,
    /// `U32`, `S32`, `B32` or `F32` (with `Min` and `Max` only).
    pub(crate) ty: Type,
    /// `.abs`: of the absolute values.
    pub(crate) abs: bool,
    /// `.NaN`: a NaN of a lane is the result; without it, a NaN is left out.
    pub(crate) nan: bool,
}

/// The NaN that floating-point instructions of a GPU return.
const CANONICAL_NAN: u32 = 0x7fff_ffff;

impl Reduce {
    pub(super) fn operands(self) -> Operands {
        let value = Operand::value(self.ty);
        Operands { destinations: vec![value], sources: vec![value, Operand::members()] }
    }

    #[inline]
    pub(super) fn eval(
        self,
        sources: &[&Lanes],
        executing: Mask,
        out: &mut [Lanes],
    ) -> Result<(), Defect> {
        let (&[values, ..], [result, ..]) = (sources, out) else { return Ok(()) };
        let values = lanes_of(executing).map(|lane| values[lane] as u32);
        let reduced = values
            .map(|value| if self.abs { value & 0x7fff_ffff } else { value })
            .reduce(|a, b| self.pair(a, b));
        if let Some(mut reduced) = reduced {
            if self.ty == Type::F32 && f32::from_bits(reduced).is_nan() {
                reduced = CANONICAL_NAN;
            }
            vote::write(executing, u64::from(reduced), result);
        }
        Ok(())
    }

    fn pair(self, a: u32, b: u32) -> u32 {
        match (self.fold, self.ty) {
            (Fold::Add, _) => a.wrapping_add(b),
            (Fold::And, _) => a & b,
            (Fold::Or, _) => a | b,
            (Fold::Xor, _) => a ^ b,
            (Fold::Min | Fold::Max, Type::F32) => self.pair_of_floats(a, b),
            (Fold::Min, Type::S32) => (a as i32).min(b as i32) as u32,
            (Fold::Max, Type::S32) => (a as i32).max(b as i32) as u32,
            (Fold::Min, _) => a.min(b),
            (Fold::Max, _) => a.max(b),
        }
    }

    /// Returns the smaller or larger number; -0 is smaller than +0.
    fn pair_of_floats(self, a: u32, b: u32) -> u32 {
        let x = f32::from_bits(a);
        let y = f32::from_bits(b);
        if x.is_nan() || y.is_nan() {
            let a_is_result = if self.nan { x.is_nan() } else { y.is_nan() };
            return if a_is_result { a } else { b };
        }
        let a_is_smaller = x.total_cmp(&y).is_le();
        if a_is_smaller == (self.fold == Fold::Min) { a } else { b }
    }
}
