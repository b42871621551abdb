//! The registers of a warp, and which of them have the same value in every lane.
//!
//! A register is marked uniform only if all 32 lanes have one value, also those without a thread
//! and those that have exited. An instruction whose sources are uniform is computed once, and its
//! result stays uniform if every live lane executes it: then it is written to the other lanes as
//! well, which never read it.

use dmr_ptx_arith::{Lanes, Mask, WARP, lanes_of};

use super::code::{Guard, NO_REG, Reg, Source, Value};
use super::program::Code;
use super::space::is_same;
use super::warp::{LaneGroup, Warp};

pub(super) static ZERO: Lanes = [0; WARP];

/// Registers, and for each whether all of its lanes have the same value.
#[derive(Debug, Default)]
pub(super) struct Registers {
    lanes: Vec<Lanes>,
    uniform: Vec<bool>,
}

impl Registers {
    /// Makes room for `count` registers.
    pub(super) fn reserve(&mut self, count: usize) {
        if self.lanes.len() < count {
            self.lanes.resize(count, [0; WARP]);
            self.uniform.resize(count, true);
        }
    }

    /// Replaces the lanes of a register.
    pub(super) fn set(&mut self, index: usize, lanes: &Lanes) {
        self.lanes[index] = *lanes;
        self.uniform[index] = is_same(Mask::MAX, lanes);
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> &Lanes {
        self.lanes.get(index).unwrap_or(&ZERO)
    }

    #[inline]
    pub(super) fn is_uniform(&self, index: usize) -> bool {
        self.uniform.get(index).is_none_or(|&uniform| uniform)
    }

    /// Returns the lanes of a register, which may then differ. Register numbers are below the
    /// number that the function declares.
    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> &mut Lanes {
        let index = index.min(self.lanes.len() - 1);
        self.uniform[index] = false;
        &mut self.lanes[index]
    }

    /// Writes one value to all lanes.
    #[inline]
    fn fill(&mut self, index: usize, value: u64) {
        let index = index.min(self.lanes.len() - 1);
        self.lanes[index] = [value; WARP];
        self.uniform[index] = true;
    }
}

impl Warp {
    /// Returns whether `mask` has all lanes that have not exited.
    #[inline]
    pub(super) fn is_all(&self, mask: Mask) -> bool {
        self.live & !mask == 0
    }

    /// Writes the lanes of `mask`.
    #[inline]
    pub(super) fn write(&mut self, base: u32, reg: Reg, mask: Mask, value: &Lanes) {
        if reg == NO_REG {
            return;
        }
        let all = self.is_all(mask);
        let register = self.registers.get_mut(number(base, reg));
        if all {
            *register = *value;
        } else {
            lanes_of(mask).for_each(|lane| register[lane] = value[lane]);
        }
    }

    /// Writes one value to the lanes of `mask`.
    #[inline]
    pub(super) fn write_uniform(&mut self, base: u32, reg: Reg, mask: Mask, value: u64) {
        if reg == NO_REG {
            return;
        }
        if self.is_all(mask) {
            self.registers.fill(number(base, reg), value);
        } else {
            let register = self.registers.get_mut(number(base, reg));
            lanes_of(mask).for_each(|lane| register[lane] = value);
        }
    }

    /// Returns the lanes of a register.
    #[inline]
    pub(super) fn register(&self, base: u32, reg: Reg) -> &Lanes {
        self.registers.get(number(base, reg))
    }

    /// Returns the lanes of a register, which may then differ.
    #[inline]
    pub(super) fn register_mut(&mut self, base: u32, reg: Reg) -> &mut Lanes {
        self.registers.get_mut(number(base, reg))
    }

    /// Returns the lanes of a group for which the predicate of an instruction holds.
    #[inline]
    pub(super) fn guarded(&self, group: &LaneGroup, guard: Guard) -> Mask {
        if guard.register == NO_REG {
            return group.mask;
        }
        let index = number(group.base, guard.register);
        let holds = if self.registers.is_uniform(index) {
            if self.registers.get(index)[0] & 1 == 0 { 0 } else { Mask::MAX }
        } else {
            predicate_mask(self.registers.get(index))
        };
        group.mask & if guard.negated { !holds } else { holds }
    }
}

pub(super) fn number(base: u32, reg: Reg) -> usize {
    base.saturating_add(reg) as usize
}

/// The sources of operands besides the registers of a warp.
pub(super) struct Sources<'a> {
    pub(super) code: &'a Code,
    /// The addresses that the launch determines, by [`Source::Address`].
    pub(super) addresses: Vec<Lanes>,
}

impl Sources<'_> {
    /// Returns the lanes of a source operand.
    #[inline]
    pub(super) fn fetch<'w>(&'w self, warp: &'w Warp, base: u32, value: Value) -> &'w Lanes {
        match value.source() {
            Source::Register(index) => warp.register(base, index),
            Source::Constant(index) => self.code.constants.get(index as usize).unwrap_or(&ZERO),
            Source::Address(index) => self.addresses.get(index as usize).unwrap_or(&ZERO),
            Source::Special(index) => warp.specials.get(index as usize),
        }
    }

    /// Returns whether all lanes of a source operand have the same value.
    #[inline]
    pub(super) fn is_uniform(&self, warp: &Warp, base: u32, value: Value) -> bool {
        match value.source() {
            Source::Register(index) => warp.registers.is_uniform(number(base, index)),
            Source::Constant(_) | Source::Address(_) => true,
            Source::Special(index) => warp.specials.is_uniform(index as usize),
        }
    }
}

/// Returns the lanes whose predicate is true.
pub(super) fn predicate_mask(lanes: &Lanes) -> Mask {
    let mut even = 0;
    let mut odd = 0;
    for (index, pair) in lanes.chunks_exact(2).enumerate() {
        even |= (pair[0] & 1) << (2 * index);
        odd |= (pair[1] & 1) << (2 * index);
    }
    (even | odd << 1) as Mask
}
