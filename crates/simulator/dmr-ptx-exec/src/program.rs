//! A program: the decoded functions of a module, its kernels and global variables.

use dmr_ptx_arith::Lanes;
use dmr_ptx_syntax::{LinkError, ParseError};

use super::code::{Inst, NO_REG, Op, Reg, Value, WarpInst};
use super::fault::{Place, SourceLine, SpaceName};
use super::space::FUNCTIONS;
use super::workspace::{self, WORKSPACE};

/// A text that cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The text is not PTX.
    #[error("not PTX: line {line}, column {column}: {message}")]
    #[non_exhaustive]
    Parse {
        /// The line, from 1.
        line: u32,
        /// The column in bytes, from 1.
        column: u32,
        /// The reason.
        message: String,
    },
    /// The texts do not fit together.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A kernel or function, or a variable, is not supported.
    #[error("{function}: {message} (line {line})")]
    #[non_exhaustive]
    Unsupported {
        /// The kernel, function or variable.
        function: String,
        /// The line of the PTX text, from 1.
        line: u32,
        /// The instruction or declaration, and what of it is not supported.
        message: String,
    },
}

impl From<ParseError> for LoadError {
    fn from(error: ParseError) -> Self {
        Self::Parse { line: error.at.line, column: error.at.column, message: error.message }
    }
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Param {
    /// The name.
    pub name: String,
    /// The offset in the bytes of all parameters.
    pub offset: usize,
    /// The size in bytes.
    pub bytes: usize,
    /// The alignment in bytes.
    pub align: usize,
}

/// A kernel of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kernel {
    /// The name.
    pub name: String,
    /// The parameters.
    pub params: Vec<Param>,
    /// The size of all parameters in bytes.
    pub param_bytes: usize,
    /// The static shared memory in bytes.
    pub shared_bytes: u64,
    /// The local memory of the kernel's own frame in bytes.
    pub local_bytes: u64,
    /// The number of registers of the kernel itself.
    pub registers: u32,
    /// The maximum number of threads of a block, if the text has one.
    pub max_threads: Option<u32>,
    /// The number of threads of a block that every launch must have, if the text has one.
    pub required_threads: Option<[u32; 3]>,
    /// The blocks of a cluster that every launch must have, if the text has them.
    pub required_cluster: Option<[u32; 3]>,
    /// The reason why the kernel cannot run, if it or a function that it calls is not supported.
    pub refusal: Option<LoadError>,
    pub(super) function: u32,
    /// The offset of each shared variable that the kernel uses.
    pub(super) shared: Vec<SharedOffset>,
}

/// The place of a shared variable in the shared memory of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedOffset {
    /// An index of the shared variables of the program.
    pub(super) variable: u32,
    /// `None` for dynamic shared memory, after all others.
    pub(super) offset: Option<u64>,
    pub(super) align: u64,
}

/// A variable in global or constant memory, which the caller places.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Global {
    /// The name.
    pub name: String,
    /// True if it is in constant memory.
    pub is_constant: bool,
    /// True if no text defines it: a kernel that uses it has a [`Kernel::refusal`].
    pub is_extern: bool,
    /// The size in bytes.
    pub bytes: u64,
    /// The alignment in bytes.
    pub align: u64,
    /// The initial bytes, by offset; bytes that are not named are zero.
    pub initial: Vec<InitialBytes>,
    /// The initial bytes that are the address of another variable.
    pub relocations: Vec<Relocation>,
}

/// Initial bytes of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InitialBytes {
    /// The offset of the first byte.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Initial bytes that are the address of a variable: the low `bytes` bytes of
/// `((address + addend) & mask) >> mask.trailing_zeros()`, at `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the formula names them")]
pub struct Relocation {
    pub offset: u64,
    pub bytes: u32,
    /// An index of the globals of the program.
    pub global: usize,
    pub addend: i64,
    pub mask: u64,
}

/// An address that the launch determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Symbol {
    /// An index of the globals, and an offset.
    Global(u32, i64),
    /// An index of the shared variables, and an offset.
    Shared(u32, i64),
}

/// The callee of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Function(u32),
    Indirect(Value),
    Builtin(Builtin),
}

/// A function that the driver provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Builtin {
    Print,
    AssertFail,
}

/// The place of an argument or return value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Actual {
    Value {
        value: Value,
        bytes: u32,
    },
    /// A variable of the frame.
    Frame {
        offset: u64,
        bytes: u64,
    },
}

/// The place of a parameter or return value in the function.
#[derive(Clone, Copy, Debug)]
pub(super) enum Formal {
    Register { register: Reg, bytes: u32 },
    Frame { offset: u64, bytes: u64 },
}

impl Formal {
    pub(super) fn as_actual(&self) -> Actual {
        match *self {
            Self::Register { register, bytes } => {
                Actual::Value { value: Value::register(register), bytes }
            }
            Self::Frame { offset, bytes } => Actual::Frame { offset, bytes },
        }
    }
}

/// A call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The calling function.
    pub(super) caller: u32,
    pub(super) target: Target,
    pub(super) arguments: Vec<Actual>,
    pub(super) returns: Vec<Actual>,
    /// The registers and the frame of the caller.
    pub(super) registers: u32,
    pub(super) frame_bytes: u64,
}

/// A decoded function.
#[derive(Clone, Debug, Default)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) entry: u32,
    pub(super) registers: u32,
    pub(super) frame_bytes: u64,
    pub(super) formals: Vec<Formal>,
    pub(super) returns: Vec<Formal>,
    /// True if it has a body and is no kernel.
    pub(super) is_callable: bool,
}

/// The place of an instruction in the text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct At {
    pub(super) function: u32,
    pub(super) line: u32,
    /// An index of the source lines.
    pub(super) source: Option<u32>,
}

/// The instructions of a program, and what they refer to by index.
#[derive(Debug, Default)]
pub(super) struct Code {
    pub(super) insts: Vec<Inst>,
    pub(super) places: Vec<At>,
    pub(super) sources: Vec<SourceLine>,
    pub(super) functions: Vec<Function>,
    pub(super) calls: Vec<Call>,
    pub(super) tables: Vec<Vec<u32>>,
    pub(super) warp_insts: Vec<WarpInst>,
    pub(super) constants: Vec<Lanes>,
    pub(super) symbols: Vec<Symbol>,
    pub(super) specials: Vec<dmr_ptx_syntax::SpecialRegister>,
    pub(super) refusals: Vec<String>,
}

impl Code {
    pub(super) fn place(&self, instruction: u32) -> Place {
        let Some(at) = self.places.get(instruction as usize) else { return Place::default() };
        let function =
            self.functions.get(at.function as usize).map(|function| function.name.clone());
        let source = at.source.and_then(|source| self.sources.get(source as usize).cloned());
        Place { function: function.unwrap_or_default(), line: at.line, source }
    }

    /// Returns whether a way leads from one instruction to another of the same function, past its
    /// calls.
    pub(super) fn leads(&self, from: u32, to: u32) -> bool {
        let mut seen = vec![false; self.insts.len()];
        let mut rest = vec![from];
        while let Some(pc) = rest.pop() {
            let Some(inst) = self.insts.get(pc as usize) else { continue };
            if pc == to {
                return true;
            }
            if std::mem::replace(&mut seen[pc as usize], true) {
                continue;
            }
            let goes_on = match inst.op {
                Op::Branch { target } => {
                    rest.push(target);
                    false
                }
                Op::BranchIndex { table, .. } => {
                    rest.extend(self.tables.get(table as usize).into_iter().flatten());
                    false
                }
                Op::Return | Op::Exit | Op::Trap => false,
                _ => true,
            };
            if goes_on || inst.guard.register != NO_REG {
                rest.push(pc + 1);
            }
        }
        false
    }
}

/// A loaded module.
#[derive(Debug)]
pub struct Program {
    pub(super) code: Code,
    pub(super) kernels: Vec<Kernel>,
    pub(super) globals: Vec<Global>,
    pub(super) target: u32,
}

impl Program {
    /// Parses and decodes the text of a PTX module.
    ///
    /// A kernel that has an instruction which is not supported is loaded with its
    /// [`Kernel::refusal`], and the others can run.
    ///
    /// # Errors
    /// If the text is not PTX, or a variable is not supported.
    pub fn load(text: &str) -> Result<Self, LoadError> {
        super::load::load(&[text])
    }

    /// Parses, links and decodes the texts of several PTX modules: a variable or function that one
    /// of them declares as `.extern` is that of another.
    ///
    /// # Errors
    /// As [`load`](Self::load); or if two texts define one name, or declare it with different
    /// sizes.
    pub fn link(texts: &[&str]) -> Result<Self, LoadError> {
        super::load::load(texts)
    }

    /// Returns the kernels, in the order of the text.
    #[must_use]
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// Returns the kernel of this name.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// Returns the variables that the caller places in its memory before the first launch.
    #[must_use]
    pub fn globals(&self) -> &[Global] {
        &self.globals
    }

    /// Returns the compute capability that the text was made for, with its last digit as the minor
    /// number: 90 for `sm_90a`.
    #[must_use]
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Returns the first kernel that is not supported, with the reason.
    #[must_use]
    pub fn first_refusal(&self) -> Option<&LoadError> {
        self.kernels.iter().find_map(|kernel| kernel.refusal.as_ref())
    }

    /// Returns where an instruction is in the text, by
    /// [`Access::instruction`](crate::Access::instruction).
    #[must_use]
    pub fn place(&self, instruction: u32) -> Place {
        self.code.place(instruction)
    }

    /// Returns whether an address is in a window of shared, local or parameter memory, of
    /// functions, or of the workspace of a cooperative launch: the caller places nothing there.
    #[must_use]
    pub fn is_reserved(address: u64) -> bool {
        super::space::resolve(address).0 != SpaceName::Global
            || (FUNCTIONS..WORKSPACE + workspace::BYTES).contains(&address)
    }
}
