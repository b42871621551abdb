//! Arithmetic, conversion and bit instructions on the lanes of registers, and [instructions between
//! lanes](lanes).
//!
//! A part of `dmr-ptx`: the interface is internal to its crates, and may change in any release.
//!
//! [`decode`] turns an opcode into an [`Arith`]; [`Arith::operands`] says which operands it has;
//! [`Arith::eval`] runs it for the lanes of a mask. All are pure functions: the only state is the
//! carry flag of each lane.
#![doc = include_str!("hardware.md")]
#![forbid(unsafe_code)]

mod approx;
mod bits;
mod carry;
mod compare;
mod convert;
mod exact;
mod families;
mod float;
mod integer;
mod io;
pub mod lanes;
mod logic;
mod modifiers;
mod pack;
mod pairs;
mod sign;
#[cfg(test)]
mod tests;
mod video;
mod warp;

pub use float::added_double;
pub use warp::{Lanes, Mask, WARP, lanes_of};

use dmr_ptx_syntax::Type;
use families::FAMILIES;
use io::Io;
use modifiers::Modifiers;

/// One decoded operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arith {
    operation: Operation,
    operands: Operands,
}

/// The operands of an operation, in the order in which PTX writes them.
///
/// An immediate operand is fetched with the type given here. Where that type is an integer, an
/// immediate is sign-extended or truncated to its size. Every operand is 32 lanes, immediates too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    results: [Type; 2],
    sources: [Type; 6],
    /// The number of results that an instruction may have.
    pub result_count: usize,
    /// The number of results that an instruction must have.
    pub required_results: usize,
    /// The number of sources that an instruction may have.
    pub source_count: usize,
    /// The number of sources that an instruction must have.
    pub required_sources: usize,
    /// Set if the result is the whole destination register: a conversion to an integer is extended
    /// to the width of the register. The result is then extended to 64 bits, and the caller
    /// truncates it to the register's width. All other results are as wide as their type, and zero
    /// above.
    pub extends: bool,
}

impl Operands {
    /// Describes an operation with one result; all operands are required.
    fn new(result: Type, sources: &[Type]) -> Self {
        let mut all = [Type::B32; 6];
        for (place, source) in all.iter_mut().zip(sources) {
            *place = *source;
        }
        let count = sources.len().min(all.len());
        Self {
            results: [result, Type::Pred],
            sources: all,
            result_count: 1,
            required_results: 1,
            source_count: count,
            required_sources: count,
            extends: false,
        }
    }

    /// Adds a predicate as an optional second result: `p|q`.
    fn with_predicate(mut self) -> Self {
        self.result_count = 2;
        self
    }

    /// Makes the last `count` sources optional.
    fn with_optional(mut self, count: usize) -> Self {
        self.required_sources = self.source_count.saturating_sub(count);
        self
    }

    /// Marks the result as one that is extended to the width of the destination register.
    fn extended(mut self) -> Self {
        self.extends = true;
        self
    }

    /// Returns the types of the results: one, or two where the instruction may have `d|p`.
    #[inline]
    #[must_use]
    pub fn results(&self) -> &[Type] {
        self.results.get(..self.result_count).unwrap_or(&self.results)
    }

    /// Returns the types of the sources, optional ones included.
    #[inline]
    #[must_use]
    pub fn sources(&self) -> &[Type] {
        self.sources.get(..self.source_count).unwrap_or(&self.sources)
    }
}

/// An operation, by family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Integer(integer::Op),
    Carry(carry::Op),
    Bits(bits::Op),
    Logic(logic::Op),
    Float(float::Op),
    Sign(sign::Op),
    Approx(approx::Op),
    Compare(compare::Op),
    Convert(convert::Op),
    Pack(pack::Op),
    Video(video::Op),
}

/// Decodes an opcode: `decode("add", &["rn", "ftz", "f32"])`.
///
/// Returns `None` if `name` is no arithmetic instruction, and an error that names the instruction
/// and what of it is not supported.
pub fn decode(name: &str, modifiers: &[&str]) -> Option<Result<Arith, String>> {
    let mut rows = FAMILIES.iter().filter(|row| row.names.contains(&name)).peekable();
    rows.peek()?;
    let words = match Modifiers::parse(name, modifiers) {
        Ok(words) => words,
        Err(error) => return Some(Err(error)),
    };
    let family = rows.find(|row| (row.condition)(&words));
    Some(family.map_or_else(
        || Err(format!("{name} is not supported with these types")),
        |family| (family.decode)(&words),
    ))
}

impl Arith {
    /// Returns the operands that an instruction with this operation has.
    #[inline]
    #[must_use]
    pub fn operands(&self) -> &Operands {
        &self.operands
    }

    /// Returns whether the operation reads or writes the carry flag.
    #[inline]
    #[must_use]
    pub fn has_carry(&self) -> bool {
        matches!(self.operation, Operation::Carry(_))
    }

    /// Returns whether the operation moves and combines single bits, so that inverting a source bit
    /// shows which bits of the results depend on it.
    #[inline]
    #[must_use]
    pub fn moves_bits(&self) -> bool {
        match self.operation {
            Operation::Logic(op) => op.moves_bits(),
            Operation::Bits(op) => op.moves_bits(),
            Operation::Convert(op) => op.moves_bits(),
            _ => false,
        }
    }

    /// Computes the results of the lanes in `mask`; other lanes of `result` and `second` keep their
    /// values.
    ///
    /// `sources` are as many as the instruction has, between [`Operands::required_sources`] and
    /// [`Operands::source_count`]; a missing source reads as zero. A negated predicate `!p` is
    /// passed as its complement. `second` is written if and only if the operation may have a second
    /// result. Bit `n` of `carry` is the condition code register's carry flag (`CC.CF`) of lane
    /// `n`.
    #[inline]
    pub fn eval(
        &self,
        sources: &[&Lanes],
        result: &mut Lanes,
        second: &mut Lanes,
        mask: Mask,
        carry: &mut Mask,
    ) {
        let io = &mut Io::new(sources, result, second, mask);
        match self.operation {
            Operation::Integer(op) => op.eval(io),
            Operation::Carry(op) => op.eval(io, carry),
            Operation::Bits(op) => op.eval(io),
            Operation::Logic(op) => op.eval(io),
            Operation::Float(op) => op.eval(io),
            Operation::Sign(op) => op.eval(io),
            Operation::Approx(op) => op.eval(io),
            Operation::Compare(op) => op.eval(io),
            Operation::Convert(op) => op.eval(io),
            Operation::Pack(op) => op.eval(io),
            Operation::Video(op) => op.eval(io),
        }
    }
}
