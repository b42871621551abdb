//! A parsed module: its variables, functions and instructions, with every name resolved to an
//! index.

use std::sync::Arc;

use crate::Type;

pub use super::instruction::*;

/// A place in the PTX text: line and column, both from 1, the column in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The byte within the line.
    pub column: u32,
}

/// The content of one PTX text.
///
/// Ids are indices: a [`VariableId::Module`] of [`Module::variables`], a [`FunctionId`] of
/// [`Module::functions`], an [`OpcodeId`] of [`Module::opcodes`], a [`SourceId`] of
/// [`Module::sources`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Module {
    /// The version of PTX (`.version 8.7`): major, minor.
    pub version: (u32, u32),
    /// The architecture that the text was made for (`.target sm_90a, texmode_independent`):
    /// `sm_90a`.
    pub target: String,
    /// The other words of `.target`: `texmode_independent`, `debug`, `map_f64_to_f32`.
    pub target_options: Vec<String>,
    /// The size of an address, in bits: 32 or 64.
    pub address_bits: u32,
    /// Variables outside of functions, in the order of their first declaration.
    pub variables: Vec<Variable>,
    /// Kernels and functions, in the order of their first declaration. A declaration and its
    /// definition are one.
    pub functions: Vec<Function>,
    /// The opcodes in use, each once.
    pub opcodes: Vec<Opcode>,
    /// The places in source files that instructions were compiled from (`.loc`), each once.
    pub sources: Vec<Source>,
    /// The source files (`.file`).
    pub files: Vec<SourceFile>,
}

/// The index of a function in [`Module::functions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// The index of an opcode in [`Module::opcodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpcodeId(pub u32);

/// The index of a register in [`Body::registers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegisterId(pub u32);

/// The index of a label in [`Body::labels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelId(pub u32);

/// The index of a source place in [`Module::sources`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

/// A variable with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VariableId {
    /// An index of [`Module::variables`].
    Module(u32),
    /// An index of [`Function::params`] of the function around the instruction.
    Param(u32),
    /// An index of [`Function::returns`] of the function around the instruction.
    Return(u32),
    /// An index of [`Body::variables`] of the function around the instruction.
    Body(u32),
}

/// A thing that has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Symbol {
    /// A variable.
    Variable(VariableId),
    /// A function or kernel.
    Function(FunctionId),
}

/// A state space that a variable can be declared in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// `.global`
    Global,
    /// `.const`
    Const,
    /// `.shared`
    Shared,
    /// `.local`
    Local,
    /// `.param`
    Param,
    /// `.reg`: a parameter or return value of a function that is a register.
    Reg,
}

/// The linkage of a variable or function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Linkage {
    /// No directive: seen in this module only. A kernel can be launched with any linkage.
    #[default]
    Internal,
    /// `.visible`
    Visible,
    /// `.extern`: defined in another module, or by the launch (dynamic shared memory).
    Extern,
    /// `.weak`
    Weak,
    /// `.common`
    Common,
}

/// A variable, parameter or return value.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// The name; two variables of one body share it where a nested scope declares it again.
    pub name: String,
    /// The state space.
    pub space: Space,
    /// The type of an element of a vector.
    pub element: Type,
    /// True if it is a `.texref`, `.samplerref` or `.surfref`; `element` is then `.b64`.
    pub opaque: bool,
    /// The number of elements of a vector (`.v2`): 1, 2, 4 or 8.
    pub vector: u32,
    /// The number of values (of vectors, where it has some): 1 unless it is an array, the product
    /// of the dimensions of an array, `None` for an array without a length
    /// (`.extern .shared .b8 buffer[]`).
    pub count: Option<u64>,
    /// The alignment in bytes, a power of two: that of `.align`, or the size of one value.
    pub align: u64,
    /// The linkage.
    pub linkage: Linkage,
    /// True if the host reads and writes it too (`.attribute(.managed)`).
    pub managed: bool,
    /// The memory that a kernel's pointer parameter points to (`.ptr .global .align 16`).
    pub pointer: Option<Pointer>,
    /// The register of this parameter, if its space is `.reg` and the function has a body.
    pub register: Option<RegisterId>,
    /// The initial bytes, in the order of their offsets; bytes that are not named are zero.
    pub initial: Vec<Initial>,
    /// Where it is declared: its name.
    pub at: Position,
}

impl Variable {
    /// Returns the size in bytes; `None` for an array without a length. At most 2^40.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        Some(self.count? * self.value_bytes())
    }

    /// Returns the size in bytes of one value (of a vector, where it has some).
    #[must_use]
    pub fn value_bytes(&self) -> u64 {
        self.element.bytes() as u64 * u64::from(self.vector)
    }
}

/// The memory that a pointer parameter of a kernel points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The state space, `None` for a generic address.
    pub space: Option<Space>,
    /// The alignment in bytes: 4 unless the text says otherwise.
    pub align: u64,
}

/// A part of a variable's initial value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initial {
    /// The offset within the variable, in bytes.
    pub offset: u64,
    /// The value there.
    pub value: InitialValue,
}

/// The initial value of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitialValue {
    /// These bytes.
    Bytes(Vec<u8>),
    /// An address, or some bits of one.
    Address(InitialAddress),
}

/// The address of a symbol as an initial value.
///
/// Its bytes are the low `bytes` bytes of
/// `((address(symbol) + addend) & mask) >> mask.trailing_zeros()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialAddress {
    /// The symbol: a variable of the module or a function.
    pub symbol: Symbol,
    /// Bytes to add.
    pub addend: i64,
    /// True if it is a generic address (`generic(symbol)`) instead of one within the symbol's
    /// space.
    pub generic: bool,
    /// The bits of the address (`0xFF00(symbol)`); all of them without a mask.
    pub mask: u64,
    /// The size of the initialised element, in bytes.
    pub bytes: u32,
}

/// A kernel (`.entry`) or device function (`.func`).
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// The name.
    pub name: String,
    /// True if it is a kernel.
    pub is_entry: bool,
    /// The linkage.
    pub linkage: Linkage,
    /// The parameters.
    pub params: Vec<Variable>,
    /// The return values of a device function.
    pub returns: Vec<Variable>,
    /// True if it does not return (`.noreturn`).
    pub no_return: bool,
    /// The directives about its launches.
    pub limits: Limits,
    /// The function that this name stands for (`.alias`).
    pub alias_of: Option<FunctionId>,
    /// The instructions; `None` for a declaration.
    pub body: Option<Body>,
    /// Where it is declared: its name.
    pub at: Position,
}

/// Performance directives of a kernel; `None` where the text has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// `.maxntid`: the largest number of threads of a block, as a product (missing dimensions are
    /// 1).
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`: the number of threads of a block (missing dimensions are 1).
    pub required_threads: Option<[u32; 3]>,
    /// `.minnctapersm`
    pub min_blocks_per_multiprocessor: Option<u32>,
    /// `.maxnctapersm`
    pub max_blocks_per_multiprocessor: Option<u32>,
    /// `.maxnreg`
    pub max_registers: Option<u32>,
    /// `.reqnctapercluster`: the number of blocks of a cluster (missing dimensions are 1).
    pub required_cluster: Option<[u32; 3]>,
    /// `.maxclusterrank`
    pub max_cluster_blocks: Option<u32>,
    /// `.explicitcluster`: the launch has to give a size of clusters.
    pub explicit_cluster: bool,
    /// `.blocksareclusters`: the grid of the launch is given in clusters.
    pub blocks_are_clusters: bool,
}

/// A source file (`.file`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// The number that [`Source::file`] has.
    pub number: u32,
    /// The name.
    pub name: String,
}

/// A place in a source file (`.loc`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The number of the file.
    pub file: u32,
    /// The line, from 1; 0 for instructions without one.
    pub line: u32,
    /// The column, from 1; 0 for the whole line.
    pub column: u32,
    /// The inlined function that this line is part of, and where it was called.
    pub inlined: Option<Inlined>,
}

/// The call that the compiler has replaced by the function's instructions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inlined {
    /// The name of the function that was inlined, as the debug sections of the text have it.
    pub function: Option<Arc<str>>,
    /// The place of the call.
    pub at: SourceId,
}

impl Module {
    /// Returns the function or kernel of this name.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }

    /// Returns the name of the source file of this number.
    #[must_use]
    pub fn file(&self, number: u32) -> Option<&str> {
        let file = self.files.iter().find(|file| file.number == number)?;
        Some(&file.name)
    }
}
