//! `mma` and `wmma.mma`: D = A * B + C for matrices that the registers of a warp hold.
//!
//! The ISA specifies neither the order nor the rounding of a tensor core's sum. Here they are those of compute
//! capability 9.0:
//!
//! - floating point: [`tensor`]. Subnormal numbers are numbers. A NaN is the canonical one.
//! - `f64`: a chain of fused multiply-adds in the order of k.
//! - integers: exact; the sum wraps to 32 bits, or saturates with `.satfinite`.
//!
//! The result of another device differs from this one by at most `(K + 2) * u * (|c| + sum of |a * b|)`, plus one unit in
//! the last place of D: `u` is 2^-23, and 2^-13 for e4m3 and e5m2, whose sums some devices keep in 14 bits. Integer and
//! `f64` products are equal to the bit.

use super::element::{Element, half};
use super::fragment::{Fragment, Layout, Positions};
use super::tensor::{self, Factor, Sum};
use super::{Defect, Operand, Operands};
use crate::arith::fused_double;
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
    /// Exact products, and a sum as a tensor core makes it.
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
            Rule::Float | Rule::Double => self.float(sources, executing, work, out),
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

    fn float(&self, sources: &[&Lanes], executing: Mask, work: &mut Work, out: &mut [Lanes]) {
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
        if self.rule == Rule::Double {
            self.multiply(a, b, sums, |sum, a, b| {
                f64::from_bits(fused_double(sum.to_bits(), a.to_bits(), b.to_bits()))
            });
        } else {
            let factors = [(self.a.element, &*a), (self.b.element, &*b)];
            for ((element, values), into) in factors.into_iter().zip(&mut work.factors) {
                into.clear();
                into.extend(values.iter().map(|&value| Factor::of(element, value)));
            }
            self.add_products(&work.factors, sums);
        }
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

    /// Adds the products of each row and column to an element of C.
    fn add_products(&self, [a, b]: &[Vec<Factor>; 2], sums: &mut [f64]) {
        let (rows, columns, depth) = (self.a.rows, self.b.columns, self.a.columns);
        let rounding = Sum::of(self.c.element, self.d.element);
        for (position, sum) in sums.iter_mut().enumerate() {
            let (row, column) = (position / columns, position % columns);
            let left = &a[row * depth..][..depth];
            let right = &b[row / rows * depth * columns + column..];
            let factors = |k: usize| (left[k], right[k * columns]);
            let c = *sum as f32;
            *sum = f64::from(match (self.a.element, self.a.layout) {
                (Element::E4m3 | Element::E5m2, _) => {
                    tensor::eight_bits(c, rounding, depth, factors)
                }
                // Two instructions of the device.
                (Element::Tf32, Layout::Dealt) => (0..depth / 4)
                    .fold(c, |c, n| tensor::step(c, rounding, (4 * n..4 * n + 4).map(factors))),
                _ if self.a.matrices() == 4 => tensor::quad(c, rounding, factors),
                _ => tensor::step(c, rounding, (0..depth).map(factors)),
            });
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

/// Buffers and positions that the instructions of matrices share, so that none of them allocates.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(super) positions: Positions,
    floats: [Vec<f64>; 3],
    factors: [Vec<Factor>; 2],
    integers: [Vec<i64>; 3],
    pub(super) bits: Vec<u64>,
}

fn wrapped(sum: i64) -> u64 {
    u64::from(sum as u32)
}

fn saturated(sum: i64) -> u64 {
    u64::from(sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32 as u32)
}
