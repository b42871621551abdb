//! Instructions between the lanes of a warp: shuffles, votes, matrix products.
//!
//! `decode` turns a dotted name into an [`Instruction`]. Its caller fetches the operands that
//! [`Operands`] describes and assembles, for a `.sync` instruction, one [`Lanes`] a source from all
//! lanes that take part (see [`Participation`]). Then
//!
//! - [`Instruction::Exchange`]: `eval` computes every destination from every source;
//! - [`Instruction::Transfer`] (`ldmatrix`, `stmatrix`, `wmma.load`, `wmma.store`): `pieces` lists
//!   the memory that is accessed, the caller reads it and calls `unpack`, or calls `pack` and
//!   writes what that returns.
//!
//! Nothing here reads memory or a program counter. What the ISA leaves undefined is a [`Defect`].

mod decode;
mod element;
mod fragment;
mod product;
mod reduce;
mod shuffle;
mod tensor;
#[cfg(test)]
mod tests;
mod transfer;
mod vote;

pub use decode::decode;
pub use product::Work;
pub use transfer::{Piece, Transfer, Window};

use crate::{Lanes, Mask};
use dmr_ptx_syntax::Type;

/// A decoded instruction between lanes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Instruction {
    /// Between registers only.
    Exchange(Exchange),
    /// Between memory and the registers of a warp.
    Transfer(Transfer),
}

impl Instruction {
    /// Returns which lanes must execute it together.
    pub fn participation(&self) -> Participation {
        match self {
            Self::Exchange(exchange) => exchange.participation(),
            Self::Transfer(_) => Participation::Warp,
        }
    }

    /// Returns its operands in the order of the PTX text.
    pub fn operands(&self) -> Operands {
        match self {
            Self::Exchange(exchange) => exchange.operands(),
            Self::Transfer(transfer) => transfer.operands(),
        }
    }
}

/// An instruction that computes registers of lanes from registers of other lanes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exchange {
    /// `shfl`, `shfl.sync`.
    Shuffle(shuffle::Shuffle),
    /// `vote`, `vote.sync`.
    Vote(vote::Vote),
    /// `match.any.sync`, `match.all.sync`.
    Match(vote::Match),
    /// `activemask`.
    ActiveMask,
    /// `elect.sync`.
    Elect,
    /// `redux.sync`.
    Reduce(reduce::Reduce),
    /// `mma.sync`, `wmma.mma.sync`.
    Product(product::Product),
    /// `movmatrix.sync`.
    MoveMatrix,
}

/// The rule by which lanes execute an instruction together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Participation {
    /// The lanes of the member mask, which is the last source. Lanes of the mask wait for each
    /// other, wherever they are.
    Members,
    /// All 32 lanes, at one program counter (`.aligned`).
    Warp,
    /// The lanes that happen to be at this instruction (no `.sync`).
    Executing,
}

/// The operands of an instruction, in the order of the PTX text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operands {
    /// The destinations. `Exchange::eval` writes one [`Lanes`] a register, also for an absent
    /// optional operand.
    pub destinations: Vec<Operand>,
    /// The sources. `Exchange::eval` takes one [`Lanes`] a register.
    pub sources: Vec<Operand>,
}

/// One operand: a register or a vector `{a, b, ...}` of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The type of each register; that of an immediate in its place.
    pub ty: Type,
    /// The number of registers. With 1, the text may have a plain register or a vector of one.
    pub registers: usize,
    /// Its part in the instruction.
    pub role: Role,
}

/// The part that an operand has in an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A register or a vector of registers.
    Value,
    /// The second destination of `d|p`, which the text may leave out.
    Optional,
    /// The mask of the lanes that take part.
    Members,
    /// An address in brackets. Its value is 64 bits wide, whatever the width of the register.
    Address,
    /// The stride of a matrix in memory, in elements, which the text may leave out: `Transfer` has
    /// a default.
    Stride,
}

impl Operand {
    fn value(ty: Type) -> Self {
        Self::vector(ty, 1)
    }

    fn vector(ty: Type, registers: usize) -> Self {
        Self { ty, registers, role: Role::Value }
    }

    fn optional() -> Self {
        Self { ty: Type::Pred, registers: 1, role: Role::Optional }
    }

    fn members() -> Self {
        Self { ty: Type::B32, registers: 1, role: Role::Members }
    }
}

/// A use of an instruction whose result the ISA leaves undefined.
///
/// The destinations are written all the same: where a lane's result is undefined it gets a value
/// that is stated here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Lanes execute a `.sync` instruction whose member mask lacks them. Each gets the result as if
    /// it were a member.
    NotMembers(Mask),
    /// Lanes of the member mask (or of the warp, for `.aligned`) do not execute the instruction.
    /// They take no part.
    Missing(Mask),
    /// `shfl` in lane `lane` reads lane `source`, which does not execute it. `lane` gets its own
    /// value.
    ReadsInactive {
        /// The reading lane, the lowest of these.
        lane: u8,
        /// The lane that is read.
        source: u8,
    },
    /// A lane has another address or stride than the first lane of the warp (`wmma.load`,
    /// `wmma.store`). The first lane's is used.
    Differs {
        /// The lowest such lane.
        lane: u8,
    },
}

impl Exchange {
    /// Returns which lanes must execute it together.
    pub fn participation(&self) -> Participation {
        match self {
            Self::Shuffle(shuffle) if !shuffle.sync => Participation::Executing,
            Self::Vote(vote) if !vote.sync => Participation::Executing,
            Self::ActiveMask => Participation::Executing,
            Self::Product(_) | Self::MoveMatrix => Participation::Warp,
            Self::Shuffle(_) | Self::Vote(_) | Self::Match(_) | Self::Elect | Self::Reduce(_) => {
                Participation::Members
            }
        }
    }

    /// Returns its operands in the order of the PTX text.
    pub fn operands(&self) -> Operands {
        match self {
            Self::Shuffle(shuffle) => shuffle.operands(),
            Self::Vote(vote) => vote.operands(),
            Self::Match(matching) => matching.operands(),
            Self::ActiveMask => {
                Operands { destinations: vec![Operand::value(Type::B32)], sources: Vec::new() }
            }
            Self::Elect => Operands {
                destinations: vec![Operand::value(Type::B32), Operand::optional()],
                sources: vec![Operand::members()],
            },
            Self::Reduce(reduce) => reduce.operands(),
            Self::Product(product) => product.operands(),
            Self::MoveMatrix => Operands {
                destinations: vec![Operand::value(Type::B32)],
                sources: vec![Operand::value(Type::B32)],
            },
        }
    }

    /// Computes the destinations of the lanes in `executing`; other lanes of `out` are left as they
    /// are.
    ///
    /// `sources` and `out` have one element a register, in the order of [`Operands`]; a vector is
    /// its registers in order. `members` is the member mask of the lanes
    /// ([`Participation::Members`]), all lanes for [`Participation::Warp`], and `executing` for
    /// [`Participation::Executing`].
    ///
    /// # Errors
    ///
    /// What the ISA leaves undefined. `out` is written all the same, as [`Defect`] says.
    #[inline]
    pub fn eval(
        &self,
        sources: &[&Lanes],
        members: Mask,
        executing: Mask,
        work: &mut Work,
        out: &mut [Lanes],
    ) -> Result<(), Defect> {
        let result = match self {
            Self::Shuffle(shuffle) => shuffle.eval(sources, executing, out),
            Self::Vote(vote) => vote.eval(sources, executing, out),
            Self::Match(matching) => matching.eval(sources, executing, out),
            Self::ActiveMask => vote::active_mask(executing, out),
            Self::Elect => vote::elect(executing, out),
            Self::Reduce(reduce) => reduce.eval(sources, executing, out),
            Self::Product(product) => product.eval(sources, executing, work, out),
            Self::MoveMatrix => transfer::move_matrix(sources, executing, out),
        };
        if executing & !members != 0 {
            return Err(Defect::NotMembers(executing & !members));
        }
        if members & !executing != 0 {
            return Err(Defect::Missing(members & !executing));
        }
        result
    }
}

/// Returns the numbers of the lanes of `mask`, lowest first. It tests each lane, since all of them
/// take part in most instructions here; [`crate::lanes_of`] is for masks with few.
fn lanes_of(mask: Mask) -> impl Iterator<Item = usize> {
    (0..crate::WARP).filter(move |lane| mask >> lane & 1 != 0)
}
