//! The decoded form of instructions: compact operations on numbered registers.

use dmr_ptx_arith::Arith;
use dmr_ptx_arith::lanes::Instruction as WarpInstruction;
use dmr_ptx_syntax::SpecialRegister;

use super::atomic::Change;
use super::cluster::ClusterInst;
use super::copies::CopyInst;
use super::fault::SpaceName;
use super::global::{Qualifier, Scope};
use super::mbarriers::MemoryBarrier;

/// The number of a register within the registers of its function.
pub(super) type Reg = u32;

/// A destination that is not needed.
pub(super) const NO_REG: Reg = u32::MAX;

/// A source operand: a register, or one of the values that are the same for a program, launch or
/// warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Value(u32);

/// The place of a [`Value`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Register(Reg),
    /// An index of the constants of the program.
    Constant(u32),
    /// An index of the addresses that the launch determines.
    Address(u32),
    /// An index of the special registers of the warp.
    Special(u32),
}

impl Value {
    const INDEX: u32 = (1 << 30) - 1;

    pub(super) const fn register(reg: Reg) -> Self {
        Self(reg & Self::INDEX)
    }

    pub(super) const fn constant(index: u32) -> Self {
        Self(index & Self::INDEX | 1 << 30)
    }

    pub(super) const fn address(index: u32) -> Self {
        Self(index & Self::INDEX | 2 << 30)
    }

    pub(super) const fn special(index: u32) -> Self {
        Self(index & Self::INDEX | 3 << 30)
    }

    pub(super) const fn source(self) -> Source {
        let index = self.0 & Self::INDEX;
        match self.0 >> 30 {
            0 => Source::Register(index),
            1 => Source::Constant(index),
            2 => Source::Address(index),
            _ => Source::Special(index),
        }
    }
}

/// The predicate of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    pub(super) register: Reg,
    pub(super) negated: bool,
}

impl Guard {
    pub(super) const NONE: Self = Self { register: NO_REG, negated: false };
}

/// One decoded instruction.
#[derive(Clone, Debug)]
pub(super) struct Inst {
    pub(super) guard: Guard,
    pub(super) op: Op,
}

/// The address of an access: `base + offset`, plus the frame of the function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Location {
    pub(super) space: SpaceName,
    pub(super) base: Value,
    pub(super) offset: i64,
    /// True if the offset counts from the frame of the function in local memory.
    pub(super) frame: bool,
    /// True if addresses have 32 bits.
    pub(super) narrow: bool,
}

/// A load or store of one to eight elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) location: Location,
    pub(super) qualifier: Qualifier,
    /// The scope in which it acquires (a load) or releases (a store).
    pub(super) fence: Option<Scope>,
    /// The bytes of an element in memory.
    pub(super) element: u8,
    /// The number of elements.
    pub(super) count: u8,
    /// True if loaded elements are sign-extended, and to how many bits.
    pub(super) extend: u8,
    /// The bytes of a lane that a load accesses, as bits.
    pub(super) used: u32,
    /// The registers to load.
    pub(super) registers: [Reg; 8],
    /// The values to store.
    pub(super) values: [Value; 8],
}

/// An atomic change of one to eight elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Atomic {
    pub(super) location: Location,
    pub(super) scope: Scope,
    /// True if it acquires, and if it releases.
    pub(super) acquires: bool,
    pub(super) releases: bool,
    pub(super) change: Change,
    /// The bytes of an element.
    pub(super) element: u8,
    /// The number of elements.
    pub(super) count: u8,
    /// The registers for the old value; `NO_REG` for `red`.
    pub(super) registers: [Reg; 8],
    pub(super) values: [Value; 8],
    /// The second operand of `cas`.
    pub(super) swap: [Value; 2],
}

/// The kind of a barrier instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BarrierKind {
    Sync,
    Arrive,
    Popc,
    And,
    Or,
}

/// A barrier of the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Barrier {
    pub(super) kind: BarrierKind,
    pub(super) id: Value,
    /// The number of threads; `None` for all threads of the block.
    pub(super) threads: Option<Value>,
    /// The predicate of a reduction.
    pub(super) predicate: Value,
    pub(super) dst: Reg,
    /// True if all threads of a warp execute the same instruction.
    pub(super) aligned: bool,
}

/// An arithmetic operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArithInst {
    pub(super) arith: Arith,
    pub(super) dst: Reg,
    pub(super) second: Reg,
    pub(super) sources: [Value; 6],
    pub(super) count: u8,
    /// The bits of the result that are kept.
    pub(super) bits: u8,
}

/// One decoded operation.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Nop,
    Arith(ArithInst),
    Copy {
        dst: Reg,
        src: Value,
    },
    Not {
        dst: Reg,
        src: Value,
    },
    /// Joins the low `bits` of each source, the first in the low bits of the first destination.
    Pack {
        dst: [Reg; 2],
        sources: [Value; 8],
        count: u8,
        bits: u8,
    },
    /// Splits the sources into parts of `bits`.
    Unpack {
        dst: [Reg; 8],
        sources: [Value; 2],
        count: u8,
        bits: u8,
    },
    Special {
        dst: Reg,
        register: SpecialRegister,
    },
    /// The address of the frame plus an offset, as an offset in local memory.
    FrameAddress {
        dst: Reg,
        offset: i64,
    },
    Branch {
        target: u32,
    },
    BranchIndex {
        index: Value,
        table: u32,
    },
    Call(u32),
    Return,
    Exit,
    Trap,
    /// Sleeps for this number of nanoseconds.
    Sleep(Value),
    Load(Transfer),
    Store(Transfer),
    Atomic(Atomic),
    Fence(Scope),
    /// A conversion between a space and generic addresses, by adding `delta`.
    ToGeneric {
        dst: Reg,
        src: Value,
        delta: u64,
    },
    IsSpace {
        dst: Reg,
        src: Value,
        space: SpaceName,
    },
    Barrier(Barrier),
    /// `bar.warp.sync`
    WarpBarrier {
        members: Value,
    },
    /// An operation between lanes; an index of the warp operations of the program.
    Warp(u32),
    /// An instruction on an `mbarrier` object.
    MemoryBarrier(MemoryBarrier),
    /// An instruction of asynchronous copies.
    Copies(Box<CopyInst>),
    Cluster(ClusterInst),
    /// Refuses what was recognised at load: an index of the refusals of the program.
    Refused(u32),
}

/// An operation between the lanes of a warp.
#[derive(Clone, Debug)]
pub(super) struct WarpInst {
    pub(super) instruction: WarpInstruction,
    pub(super) sources: Vec<Value>,
    pub(super) results: Vec<Reg>,
    /// The member mask; `None` for the lanes that execute it together. It is also among the
    /// sources.
    pub(super) members: Option<Value>,
    /// The address of a matrix, an offset to add, and the stride.
    pub(super) address: Option<Value>,
    pub(super) offset: i64,
    pub(super) stride: Option<Value>,
}
