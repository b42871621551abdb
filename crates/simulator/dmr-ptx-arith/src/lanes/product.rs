//! `mma` and `wmma.mma`: D = A * B + C for matrices that the registers of a warp hold.
//!
//! The ISA specifies neither the order nor the rounding of a tensor core's sum. Here they are those
//! of compute capability 9.0:
//!
//! - floating point: [`tensor`]. Subnormal numbers are numbers. A NaN is the canonical one.
//! - `f64`: a chain of fused multiply-adds in the order of k.
//! - integers: exact; the sum wraps to 32 bits, or saturates with `.satfinite`.
//!
//! The result of another device differs from this one by at most
//! `(K + 2) * u * (|c| + sum of |a * b|)`, plus one unit in the last place of D: `u` is 2^-23, and
//! 2^-13 for e4m3 and e5m2, whose sums some devices keep in 14 bits. Integer and `f64` products are
//! equal to the bit.

use std::collections::HashSet;

use super::element::Element;
use super::fragment::{Fragment, Layout, Order, Orders};
use super::tensor::{Factors, Left, Right, Sum, Sums};
use super::{Defect, Operand, Operands};
use crate::float::fused_double;
use crate::{Lanes, Mask, WARP};

/// `mma.sync` and `wmma.mma.sync`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
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
            Rule::Float => self.float(sources, executing, work, out),
            Rule::Double => self.double(sources, executing, work, out),
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

    /// Returns the bits of the registers of D that depend on these bits of the sources: those of
    /// each element on its row of A, its column of B and its element of C.
    pub fn depending(&self, sources: &[&Lanes]) -> Vec<Lanes> {
        let mut all = vec![[0; WARP]; self.d.registers];
        if sources.len() < self.a.registers + self.b.registers + self.c.registers {
            return all;
        }
        let places = self.matrices(sources).map(|(fragment, _, registers)| {
            let mut places = Vec::new();
            fragment.for_each(|place, register, lane, bits| {
                if registers[register][lane] & bits != 0 {
                    places.push(place);
                }
            });
            places
        });
        let [left, right, sums] = places;
        let rows: HashSet<_> = left.iter().map(|place| (place.matrix, place.row)).collect();
        let columns: HashSet<_> = right.iter().map(|place| (place.matrix, place.column)).collect();
        let sums: HashSet<_> = sums.into_iter().collect();
        self.d.for_each(|place, register, lane, bits| {
            if rows.contains(&(place.matrix, place.row))
                || columns.contains(&(place.matrix, place.column))
                || sums.contains(&place)
            {
                all[register][lane] |= bits;
            }
        });
        all
    }

    /// Returns the three sources: the matrix, the order of its elements, and its registers.
    fn matrices<'s, 'l>(
        &self,
        sources: &'s [&'l Lanes],
    ) -> [(Fragment, Order, &'s [&'l Lanes]); 3] {
        let (a, rest) = sources.split_at(self.a.registers);
        let (b, c) = rest.split_at(self.b.registers);
        let c = &c[..self.c.registers];
        [(self.a, Order::Left, a), (self.b, Order::Right, b), (self.c, Order::Sum, c)]
    }

    fn float(&self, sources: &[&Lanes], executing: Mask, work: &mut Work, out: &mut [Lanes]) {
        let Work { orders, elements: [a, b, c], left, right, sums, c_values, bits, .. } = work;
        for ((fragment, order, registers), into) in
            self.matrices(sources).into_iter().zip([&mut *a, b, c])
        {
            let positions = orders.of(&fragment, order);
            fragment.gather(registers, executing, positions, |bits| bits as u32, into);
        }
        left.set(self.a.element, a);
        right.set(self.b.element, b);
        sums.set(self.c.element, c);
        let factors = Factors {
            left,
            right,
            rows: self.a.rows,
            depth: self.a.columns,
            columns: self.b.columns,
        };
        let rounding = Sum::of(self.c.element, self.d.element);
        match (self.a.element, self.a.layout) {
            (Element::E4m3 | Element::E5m2, _) => factors.eight_bits(sums, rounding, c_values),
            // Two instructions of the device.
            (Element::Tf32, Layout::Dealt) => {
                (0..factors.depth).step_by(4).for_each(|k| factors.step(sums, rounding, k, 4));
            }
            _ if self.a.matrices() == 4 => factors.quad(sums, rounding),
            _ => factors.step(sums, rounding, 0, factors.depth),
        }
        bits.clear();
        if self.d.element == Element::F16 {
            bits.extend(sums.values.iter().map(|&sum| Element::F16.round(sum)));
        } else {
            bits.extend(sums.values.iter().map(|&sum| Element::F32.round(sum)));
        }
        self.put(executing, work, out);
    }

    fn double(&self, sources: &[&Lanes], executing: Mask, work: &mut Work, out: &mut [Lanes]) {
        let matrices = self.matrices(sources);
        for ((fragment, order, registers), into) in matrices.iter().zip(&mut work.doubles) {
            let positions = work.orders.of(fragment, *order);
            fragment.gather(registers, executing, positions, f64::from_bits, into);
        }
        let [a, b, sums] = &mut work.doubles;
        self.multiply(a, b, sums, |sum, a, b| {
            f64::from_bits(fused_double(sum.to_bits(), a.to_bits(), b.to_bits()))
        });
        work.bits.clear();
        work.bits.extend(sums.iter().map(|sum| sum.to_bits()));
        self.put(executing, work, out);
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
        let matrices = self.matrices(sources);
        for ((fragment, order, registers), into) in matrices.iter().zip(&mut work.integers) {
            let positions = work.orders.of(fragment, *order);
            let value = |bits| fragment.element.to_i64(bits);
            fragment.gather(registers, executing, positions, value, into);
        }
        let [a, b, sums] = &mut work.integers;
        self.multiply(a, b, sums, |sum, a, b| sum + multiply(a, b));
        work.bits.clear();
        work.bits.extend(sums.iter().map(|&sum| finish(sum)));
        self.put(executing, work, out);
    }

    /// Writes D, whose elements are in `work.bits`.
    fn put(&self, executing: Mask, work: &mut Work, out: &mut [Lanes]) {
        let positions = work.orders.of(&self.d, Order::Sum);
        self.d.scatter(executing, positions, &work.bits, out);
    }

    /// Adds the products to `sums`, in the order of k.
    fn multiply<T: Copy>(&self, a: &[T], b: &[T], sums: &mut [T], add: impl Fn(T, T, T) -> T) {
        let rows = self.a.rows;
        let columns = self.b.columns;
        let depth = self.a.columns;
        // Every matrix has a multiple of eight columns.
        let blocks = (columns / 8).max(1);
        let (right, _) = b.as_chunks::<8>();
        let (sums, _) = sums.as_chunks_mut::<8>();
        for (row, left) in a.chunks_exact(depth).enumerate() {
            let right = &right[row / rows * depth * blocks..][..depth * blocks];
            let sums = sums[row * blocks..][..blocks].iter_mut();
            for (right, sums) in right.chunks_exact(depth).zip(sums) {
                let mut all = *sums;
                for (&left, right) in left.iter().zip(right) {
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
pub struct Work {
    pub(super) orders: Orders,
    elements: [Vec<u32>; 3],
    c_values: Vec<f32>,
    left: Left,
    right: Right,
    sums: Sums,
    doubles: [Vec<f64>; 3],
    integers: [Vec<i64>; 3],
    pub(super) bits: Vec<u64>,
}

fn wrapped(sum: i64) -> u64 {
    u64::from(sum as u32)
}

fn saturated(sum: i64) -> u64 {
    u64::from(sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32 as u32)
}
