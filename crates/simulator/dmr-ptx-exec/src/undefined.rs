//! Values that were read where no thread has written: which bits of registers they are, and what
//! may not depend on them.
//!
//! A read of such bytes is no fault: a merge loop loads one element beyond its part and drops it.
//! The bits that it loads are undefined. They are followed through registers, and reported where
//! they matter: in an address, a branch, the predicate of an instruction with an effect, an operand
//! of an atomic operation. A store of them makes memory unwritten.

use dmr_ptx_arith::{Lanes, Mask, WARP, lanes_of};

use super::code::{Source, Value};
use super::fault::SpaceName;
use super::registers::{ZERO, number};
use super::space::lanes_where;

/// A read of bytes that no thread has written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) space: SpaceName,
    pub(super) address: u64,
    pub(super) bytes: u32,
    /// The number in the block of the thread.
    pub(super) thread: u32,
    pub(super) instruction: u32,
}

impl Origin {
    pub(super) const NONE: Self =
        Self { space: SpaceName::Generic, address: 0, bytes: 0, thread: 0, instruction: 0 };
}

/// The undefined bits of a register, and the read that those of each lane come from.
#[derive(Clone, Debug)]
pub(super) struct Undefined {
    pub(super) bits: Lanes,
    pub(super) origins: [Origin; WARP],
}

impl Undefined {
    pub(super) const NONE: Self = Self { bits: [0; WARP], origins: [Origin::NONE; WARP] };

    /// Returns the lanes of `mask` that have undefined bits.
    pub(super) fn lanes(&self, mask: Mask) -> Mask {
        lanes_where(mask, |lane| self.bits[lane] != 0)
    }

    /// Makes all bits of the lanes of `mask` undefined that have undefined bits in `source`.
    pub(super) fn spread(&mut self, source: &Self, mask: Mask) {
        for lane in lanes_of(source.lanes(mask)) {
            self.bits[lane] = u64::MAX;
            self.origins[lane] = source.origins[lane];
        }
    }

    /// Takes a lane from another register.
    pub(super) fn take(&mut self, from: &Self, lane: usize) {
        self.bits[lane] = from.bits[lane];
        self.origins[lane] = from.origins[lane];
    }

    /// Sets the bits of lanes to those that are set in `bits`, with the origins of `sources`.
    pub(super) fn moved(bits: Lanes, sources: &[&Self]) -> Self {
        let mut all = Self { bits, ..Self::NONE };
        for lane in 0..WARP {
            let source = sources.iter().find(|source| source.bits[lane] != 0);
            all.origins[lane] = source.map_or(Origin::NONE, |source| source.origins[lane]);
        }
        all
    }
}

/// The registers of a warp that have undefined bits, by number.
#[derive(Debug, Default)]
pub(super) struct UndefinedRegisters {
    registers: Vec<Option<Box<Undefined>>>,
    count: usize,
}

pub(super) static DEFINED: Undefined = Undefined::NONE;

impl UndefinedRegisters {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the undefined bits of a source operand.
    pub(super) fn get(&self, base: u32, value: Value) -> &Undefined {
        let Source::Register(register) = value.source() else { return &DEFINED };
        let found = self.registers.get(number(base, register)).and_then(Option::as_deref);
        found.unwrap_or(&DEFINED)
    }

    /// Replaces the undefined bits of the lanes of `mask`.
    pub(super) fn set(&mut self, index: usize, mask: Mask, new: &Undefined) {
        let is_there = self.registers.get(index).is_some_and(Option::is_some);
        if !is_there && new.lanes(mask) == 0 {
            return;
        }
        if self.registers.len() <= index {
            self.registers.resize_with(index + 1, || None);
        }
        let register = &mut self.registers[index];
        let old = register.get_or_insert_with(|| Box::new(Undefined::NONE));
        for lane in lanes_of(mask) {
            old.take(new, lane);
        }
        let remains = old.bits != ZERO;
        if !remains {
            *register = None;
            while matches!(self.registers.last(), Some(None)) {
                self.registers.pop();
            }
        }
        self.count = self.count + usize::from(remains) - usize::from(is_there);
    }

    /// Makes the lanes of `mask` defined in all registers from number `first` on.
    pub(super) fn clear(&mut self, first: u32, mask: Mask) {
        if self.is_empty() {
            return;
        }
        for index in first as usize..self.registers.len() {
            self.set(index, mask, &Undefined::NONE);
        }
    }
}

/// Makes the bytes unwritten that have undefined bits.
pub(super) fn undefine(written: &mut [u8], bits: &[u8]) {
    written.iter_mut().zip(bits).for_each(|(written, &bits)| *written &= u8::from(bits == 0));
}
