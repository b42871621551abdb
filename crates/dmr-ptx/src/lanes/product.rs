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

use super::element::{Element, half};
use super::fragment::{Fragment, Positions};
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
        work: &mut Work,
        out: &mut [Lanes],
    ) -> Result<(), Defect> {
        if sources.len() < self.a.registers + self.b.registers + self.c.registers {
            return Ok(());
        }
        match self.rule {
            Rule::Float => self.float(sources, executing, work, out, |sum, a, b| sum + a * b),
            Rule::Double => {
                self.float(sources, executing, work, out, |sum, a, b| a.mul_add(b, sum))
            }
            Rule::Integer { saturate: true } => {
                self.integer(sources, executing, work, out, saturated, |a, b| a * b)
            }
            Rule::Integer { saturate: false } => {
                self.integer(sources, executing, work, out, wrapped, |a, b| a * b)
            }
            Rule::And => self.integer(sources, executing, work, out, wrapped, |a, b| a & b),
            Rule::Xor => self.integer(sources, executing, work, out, wrapped, |a, b| a ^ b),
        }
        Ok(())
    }

    /// Returns the three sources: the matrix, and its registers.
    fn matrices<'s, 'l>(&self, sources: &'s [&'l Lanes]) -> [(Fragment, &'s [&'l Lanes]); 3] {
        let (a, rest) = sources.split_at(self.a.registers);
        let (b, c) = rest.split_at(self.b.registers);
        [(self.a, a), (self.b, b), (self.c, &c[..self.c.registers])]
    }

    fn float(
        &self,
        sources: &[&Lanes],
        executing: Mask,
        work: &mut Work,
        out: &mut [Lanes],
        add: impl Fn(f64, f64, f64) -> f64,
    ) {
        for ((fragment, registers), into) in self.matrices(sources).iter().zip(&mut work.floats) {
            let positions = work.positions.of(fragment);
            // The conversion is chosen here, so that its loop over the lanes is a plain one.
            match fragment.element {
                Element::F16 => fragment.gather(registers, executing, positions, half, into),
                Element::F32 => {
                    let value = |bits| Element::F32.to_f64(bits);
                    fragment.gather(registers, executing, positions, value, into);
                }
                element => {
                    let value = |bits| element.to_f64(bits);
                    fragment.gather(registers, executing, positions, value, into);
                }
            }
        }
        let [a, b, sums] = &mut work.floats;
        self.multiply(a, b, sums, add);
        let positions = work.positions.of(&self.d);
        let value = |position: usize| sums.get(position).copied().unwrap_or_default();
        match self.d.element {
            Element::F32 => {
                let round = |position| Element::F32.round(value(position));
                self.d.scatter(executing, positions, round, out);
            }
            element => {
                self.d.scatter(
                    executing,
                    positions,
                    |position| element.round(value(position)),
                    out,
                );
            }
        }
    }

    fn integer(
        &self,
        sources: &[&Lanes],
        executing: Mask,
        work: &mut Work,
        out: &mut [Lanes],
        finish: impl Fn(i64) -> u64,
        multiply: impl Fn(i64, i64) -> i64,
    ) {
        for ((fragment, registers), into) in self.matrices(sources).iter().zip(&mut work.integers) {
            let positions = work.positions.of(fragment);
            let value = |bits| fragment.element.to_i64(bits);
            fragment.gather(registers, executing, positions, value, into);
        }
        let [a, b, sums] = &mut work.integers;
        self.multiply(a, b, sums, |sum, a, b| sum + multiply(a, b));
        let finish = |position: usize| finish(sums[position]);
        self.d.scatter(executing, work.positions.of(&self.d), finish, out);
    }

    /// Adds the products to `sums`, in the order of k.
    fn multiply<T: Copy>(&self, a: &[T], b: &[T], sums: &mut [T], add: impl Fn(T, T, T) -> T) {
        let (rows, columns, depth) = (self.a.rows, self.b.columns, self.a.columns);
        // Every matrix has a multiple of eight columns.
        let blocks = (columns / 8).max(1);
        let (right, _) = b.as_chunks::<8>();
        let (sums, _) = sums.as_chunks_mut::<8>();
        for (row, left) in a.chunks_exact(depth).enumerate() {
            let right = &right[row / rows * depth * blocks..][..depth * blocks];
            for (block, sums) in sums[row * blocks..][..blocks].iter_mut().enumerate() {
                let mut all = *sums;
                for (&left, right) in left.iter().zip(right[block..].iter().step_by(blocks)) {
                    for (sum, &right) in all.iter_mut().zip(right) {
                        *sum = add(*sum, left, right);
                    }
                }
                *sums = all;
            }
        }
    }
}

/// What is kept between the instructions of matrices, so that none of them allocates.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(super) positions: Positions,
    floats: [Vec<f64>; 3],
    integers: [Vec<i64>; 3],
    pub(super) bits: Vec<u64>,
}

fn wrapped(sum: i64) -> u64 {
    u64::from(sum as u32)
}

fn saturated(sum: i64) -> u64 {
    u64::from(sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32 as u32)
}
