//! The body of a parsed function: its registers, labels and instructions, and their operands.

use crate::Type;

use super::module::{
    FunctionId, LabelId, OpcodeId, Position, RegisterId, SourceId, Symbol, Variable,
};
use super::special::SpecialRegister;

/// The statements of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// The registers in use. A declared register that no instruction names is not among them.
    pub registers: Vec<Register>,
    /// Variables that are declared in the body, those of nested scopes too.
    pub variables: Vec<Variable>,
    /// The instructions.
    pub instructions: Vec<Instruction>,
    /// The bytes that loads use, by `.pragma "used_bytes_mask"`; those of other loads are all used.
    pub used_bytes: Vec<UsedBytes>,
    /// The labels of instructions.
    pub labels: Vec<Label>,
    /// The lists of `.branchtargets`, by [`Operand::BranchTargets`].
    pub branch_targets: Vec<Vec<LabelId>>,
    /// The lists of `.calltargets`, by [`Operand::CallTargets`].
    pub call_targets: Vec<Vec<FunctionId>>,
    /// The declarations of `.callprototype`, by [`Operand::Prototype`].
    pub prototypes: Vec<Prototype>,
}

/// The bytes of a load that are accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedBytes {
    /// The index of the instruction.
    pub instruction: u32,
    /// A bit for each byte, the first in the lowest bit.
    pub mask: u32,
}

/// A register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// The name, with its number: `%r17`. Two registers of one body share it where a nested scope
    /// declares it again.
    pub name: String,
    /// The type of an element.
    pub ty: Type,
    /// The number of elements of a vector (`.v2`): 1, 2, 4 or 8.
    pub vector: u32,
}

/// A label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The name.
    pub name: String,
    /// The index of the instruction that follows it; the number of instructions, if none does.
    pub instruction: u32,
}

/// The signature of an indirect call (`.callprototype`).
#[derive(Clone, Debug, PartialEq)]
pub struct Prototype {
    /// The return values; their names are `_`.
    pub returns: Vec<Variable>,
    /// The parameters; their names are `_`.
    pub params: Vec<Variable>,
    /// True if the function does not return.
    pub no_return: bool,
}

/// The name and modifiers of an instruction: `add.rn.ftz.f32` is `add`, with `rn`, `ftz` and `f32`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Opcode {
    /// The first part.
    pub name: String,
    /// The other parts, without dots; `shared::cta` is one part.
    pub modifiers: Vec<String>,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// The predicate of `@p`.
    pub guard: Option<Guard>,
    /// The name and modifiers.
    pub opcode: OpcodeId,
    /// Where it is in the source file.
    pub source: Option<SourceId>,
    /// Where it is in the PTX text: the opcode.
    pub at: Position,
    /// The operands, in the order of the text.
    ///
    /// `call` has always these, whether the text names them or not: the list of return values, the
    /// function (a [`Symbol::Function`], or a register for an indirect call), the list of
    /// arguments; an indirect call has a fourth, [`Operand::Prototype`] or
    /// [`Operand::CallTargets`].
    pub operands: Box<[Operand]>,
}

/// The predicate of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The predicate register.
    pub register: RegisterId,
    /// True if the instruction runs where the predicate is false (`@!p`).
    pub negated: bool,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register, also a whole vector register.
    Register(RegisterId),
    /// An element of a vector register (`v.x`), or the bytes of one for video instructions (`r.b0`,
    /// `r.h1`).
    Element(RegisterId, Selector),
    /// An integer constant: 64 bits in two's complement. The instruction's type says what it means.
    Integer(u64),
    /// A single-precision constant of exact bits (`0f3F800000`).
    Float32(u32),
    /// A double-precision constant: its bits (`0d3FF0000000000000`, `1.5`).
    Float64(u64),
    /// A symbol and an offset in bytes: its address for `mov`; also an element of an array
    /// (`table[2]`).
    Symbol(Symbol, i64),
    /// A label of an instruction.
    Label(LabelId),
    /// An index of [`Body::branch_targets`].
    BranchTargets(u32),
    /// An index of [`Body::call_targets`].
    CallTargets(u32),
    /// An index of [`Body::prototypes`].
    Prototype(u32),
    /// A special register (`%tid.x`).
    Special(SpecialRegister),
    /// A place in memory (`[%rd1+16]`).
    Address(Address),
    /// Brackets with more than an address: a texture or tensor and its coordinates
    /// (`[map, {%r1, %r2}]`).
    Indexed(Box<[Operand]>),
    /// A vector of registers or constants (`{%r1, %r2}`).
    Vector(Box<[Operand]>),
    /// The list of return values or arguments of `call`.
    List(Box<[Operand]>),
    /// Two destinations (`p|q`).
    Pair(Box<[Operand; 2]>),
    /// The sum of a register and a constant (`%r1+8`).
    Sum(RegisterId, i64),
    /// The negation of a predicate (`!p`).
    Not(RegisterId),
    /// The negation of an operand of a video instruction (`-r`).
    Minus(Box<Operand>),
    /// A destination that is not needed (`_`).
    Sink,
}

/// A place in memory: the base plus an offset in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The base that the offset is added to.
    pub base: Base,
    /// The offset in bytes; the address itself where there is no base.
    pub offset: i64,
}

/// The base of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The value of a register.
    Register(RegisterId),
    /// The address of a symbol.
    Symbol(Symbol),
    /// No base: the offset is the address.
    Absolute,
}

/// A part of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The element of a vector: 0 for `.x` or `.r`, 1 for `.y` or `.g`, 2 for `.z` or `.b`, 3 for
    /// `.w` or `.a`.
    Element(u8),
    /// The byte of this number (`.b0`).
    Byte(u8),
    /// The half of this number (`.h0`).
    Half(u8),
}
