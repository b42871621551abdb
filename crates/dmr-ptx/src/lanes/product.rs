//! `mma` and `wmma.mma`: D = A * B + C for matrices that the registers of a warp hold.
//!
//! The ISA specifies neither the order nor the rounding of a tensor core's sum. Here:
//!
//! - floating point: the products are exact; they are added to the element of C in `f64`, in the order of k; the sum is
//!   rounded once, to nearest even, to D's type. Subnormal numbers are numbers. A NaN is the canonical one.
//! - `f64`: a chain of fused multiply-adds in the order of k, as on the device.
//! - integers: exact; the sum wraps to 32 bits, or saturates with `.satfinite`.
//!
//! A device's result differs from this one by at most `(K + 2) * u * (|c| + sum of |a * b|)`, plus one unit in the last
//! place of D: `u` is 2^-23, and 2^-13 for e4m3 and e5m2, whose sums some devices keep in 14 bits. Compare with that
//! tolerance. Integer and `f64` products are equal to the bit.

use super::element::Element;
use super::fragment::Fragment;
use super::{Defect, Operand, Operands};
use crate::types::{Lanes, Mask};

/// `mma.sync` and `wmma.mma.sync`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Product {
    pub(super) a: Fragment,
    pub(super) b: Fragment,
    pub(super) c: Fragment,
    pub(super) d: Fragment,
    pub(super) rule: Rule,
}

/// The arithmetic of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Exact products, a sum in `f64`, rounded once.
    Float,
    /// Fused multiply-adds in `f64`.
    Double,
    /// Integers; the sum saturates or wraps.
    Integer { saturate: bool },
    /// Single bits: the number of places where both are 1.
    And,
    /// Single bits: the number of places where they differ.
    Xor,
}

impl Product {
    pub(super) fn operands(&self) -> Operands {
        let operand =
            |fragment: &Fragment| Operand::vector(fragment.register_type(), fragment.registers);
        Operands {
            destinations: vec![operand(&self.d)],
            sources: vec![operand(&self.a), operand(&self.b), operand(&self.c)],
        }
    }

    pub(super) fn eval(
        &self,
        sources: &[&Lanes],
        executing: Mask,
        out: &mut [Lanes],
    ) -> Result<(), Defect> {
        if sources.len() < self.a.registers + self.b.registers + self.c.registers {
            return Ok(());
        }
        let (a, rest) = sources.split_at(self.a.registers);
        let (b, c) = rest.split_at(self.b.registers);
        match self.rule {
            Rule::Float => self.float(a, b, c, executing, out, |sum, a, b| sum + a * b),
            Rule::Double => self.float(a, b, c, executing, out, |sum, a, b| a.mul_add(b, sum)),
            Rule::Integer { saturate: true } => {
                self.integer(a, b, c, executing, out, saturated, |a, b| a * b)
            }
            Rule::Integer { saturate: false } => {
                self.integer(a, b, c, executing, out, wrapped, |a, b| a * b)
            }
            Rule::And => self.integer(a, b, c, executing, out, wrapped, |a, b| a & b),
            Rule::Xor => self.integer(a, b, c, executing, out, wrapped, |a, b| a ^ b),
        }
        Ok(())
    }

    fn float(
        &self,
        a: &[&Lanes],
        b: &[&Lanes],
        c: &[&Lanes],
        executing: Mask,
        out: &mut [Lanes],
        add: impl Fn(f64, f64, f64) -> f64,
    ) {
        let a = self.a.gather(a, executing, |bits| self.a.element.to_f64(bits));
        let b = self.b.gather(b, executing, |bits| self.b.element.to_f64(bits));
        let mut sums = self.c.gather(c, executing, |bits| self.c.element.to_f64(bits));
        self.multiply(&a, &b, &mut sums, add);
        self.d.scatter(executing, |position| self.d.element.round(sums[position]), out);
    }

    #[allow(clippy::too_many_arguments, reason = "the operands of the instruction and two rules")]
    fn integer(
        &self,
        a: &[&Lanes],
        b: &[&Lanes],
        c: &[&Lanes],
        executing: Mask,
        out: &mut [Lanes],
        finish: impl Fn(i64) -> u64,
        multiply: impl Fn(i64, i64) -> i64,
    ) {
        let a = self.a.gather(a, executing, |bits| self.a.element.to_i64(bits));
        let b = self.b.gather(b, executing, |bits| self.b.element.to_i64(bits));
        let mut sums = self.c.gather(c, executing, |bits| Element::S32.to_i64(bits));
        self.multiply(&a, &b, &mut sums, |sum, a, b| sum + multiply(a, b));
        self.d.scatter(executing, |position| finish(sums[position]), out);
    }

    /// Adds the products to `sums`, in the order of k.
    fn multiply<T: Copy>(&self, a: &[T], b: &[T], sums: &mut [T], add: impl Fn(T, T, T) -> T) {
        let (rows, columns, depth) = (self.a.rows, self.b.columns, self.a.columns);
        for matrix in 0..self.a.matrices() {
            for row in 0..rows {
                let sums = &mut sums[(matrix * rows + row) * columns..][..columns];
                for k in 0..depth {
                    let left = a[(matrix * rows + row) * depth + k];
                    let right = &b[(matrix * depth + k) * columns..][..columns];
                    for (sum, &right) in sums.iter_mut().zip(right) {
                        *sum = add(*sum, left, right);
                    }
                }
            }
        }
    }
}

fn wrapped(sum: i64) -> u64 {
    u64::from(sum as u32)
}

fn saturated(sum: i64) -> u64 {
    u64::from(sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32 as u32)
}
