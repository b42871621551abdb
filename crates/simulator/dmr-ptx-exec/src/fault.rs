//! The checks and limits of a launch, its faults, and its result.

use std::fmt;

/// A place in the text of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The kernel or function.
    pub function: String,
    /// The line of the PTX text, from 1.
    pub line: u32,
    /// The file and line of the source, from the `.loc` directive before the instruction.
    pub source: Option<SourceLine>,
}

/// A line of the source that PTX was compiled from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceLine {
    /// The file, as the `.file` directive names it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The line of the outermost call, if the function that this line is part of was inlined.
    pub inlined_at: Option<Box<CallLine>>,
}

/// A line of the source with a call that the compiler has replaced by the function's instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallLine {
    /// The file, as the `.file` directive names it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
}

/// `user.cu:40`, or `helper.cuh:12, inlined at user.cu:40`.
impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        match &self.inlined_at {
            Some(call) => write!(f, ", inlined at {}:{}", call.file, call.line),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`, line {} of the PTX", self.function, self.line)?;
        match &self.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

/// A thread of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Thread {
    /// The index of its block in the grid: x, y, z.
    pub block: [u32; 3],
    /// Its index in the block: x, y, z.
    pub thread: [u32; 3],
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bx, by, bz] = self.block;
        let [x, y, z] = self.thread;
        write!(f, "thread ({x},{y},{z}) of block ({bx},{by},{bz})")
    }
}

/// The memory spaces of PTX in which the interpreter checks accesses itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of the PTX ISA")]
pub enum SpaceName {
    Generic,
    Global,
    Shared,
    Local,
    Const,
    Param,
}

impl fmt::Display for SpaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Generic => "generic",
            Self::Global => "global",
            Self::Shared => "shared",
            Self::Local => "local",
            Self::Const => "constant",
            Self::Param => "parameter",
        })
    }
}

/// The reason why a launch ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// The kernel, or what it calls, has an instruction that the interpreter does not support.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The launch does not fit the kernel or the device.
    #[error("invalid launch: {0}")]
    InvalidLaunch(String),
    /// An address that is not a multiple of the size of the access.
    #[error("misaligned {bytes}-byte access to {space} memory at {address:#x}")]
    #[non_exhaustive]
    Misaligned {
        /// The space.
        space: SpaceName,
        /// The address.
        address: u64,
        /// The bytes of the access.
        bytes: u32,
    },
    /// An access outside of the bytes of a space.
    #[error(
        "{bytes}-byte access out of bounds to {space} memory at {address:#x}: it has {len} bytes"
    )]
    #[non_exhaustive]
    OutOfBounds {
        /// The space.
        space: SpaceName,
        /// The address, as an offset in the space.
        address: u64,
        /// The bytes of the access.
        bytes: u32,
        /// The bytes of the space.
        len: u64,
    },
    /// A use of a value that was read from bytes which no thread has written.
    #[error(
        "{used} depends on a {bytes}-byte read of uninitialised {space} memory at {address:#x} by {reader}, {read}"
    )]
    #[non_exhaustive]
    Uninitialised {
        /// The space.
        space: SpaceName,
        /// The address that was read, as an offset in the space.
        address: u64,
        /// The bytes that were read.
        bytes: u32,
        /// The thread that read them.
        reader: Thread,
        /// The instruction that read them.
        read: Place,
        /// The use: "an address", "a branch".
        used: &'static str,
    },
    /// An access that the memory of the caller refused.
    #[error("{message}")]
    #[non_exhaustive]
    Memory {
        /// The first address of the access.
        address: u64,
        /// The reason.
        message: String,
    },
    /// Two threads accessed the same byte without order, one of them writing.
    #[error("race: {access} of {space} memory at {address:#x}, which {other} {earlier}, without order between them{}",
        if *.equal { " (both wrote the same value)" } else { "" })]
    #[non_exhaustive]
    Race {
        /// The space.
        space: SpaceName,
        /// The address of the first byte that both accessed.
        address: u64,
        /// The kind of this access: "read", "write", "atomic write".
        access: &'static str,
        /// The other thread.
        other: Thread,
        /// The kind and the place of the other access.
        earlier: String,
        /// True if both are plain writes of the same value.
        equal: bool,
    },
    /// Threads wait at a barrier that others have left out, or reached elsewhere.
    #[error("divergent barrier: {0}")]
    DivergentBarrier(String),
    /// A warp-wide operation whose member mask does not name its lanes, or that a member never
    /// reaches.
    #[error("divergent warp operation: {0}")]
    DivergentWarp(String),
    /// `__assertfail`: a device-side `assert` failed.
    #[error("{0}")]
    Assertion(String),
    /// An instruction with operands that the device has no meaning for.
    #[error("illegal instruction: {0}")]
    IllegalInstruction(String),
    /// `trap` was executed.
    #[error("trap")]
    Trap,
    /// A call at the depth limit, or beyond the bytes of local memory.
    #[error("stack overflow: {0}")]
    StackOverflow(String),
    /// A branch, call or operand value that is not valid.
    #[error("{0}")]
    Invalid(String),
    /// All resident threads only poll, and no store changes what they read.
    #[error("no progress: {0}")]
    NoProgress(String),
    /// The limit on instructions is reached.
    #[error("the limit of {0} warp instructions is reached")]
    InstructionLimit(u64),
}

/// An error of the kernel, which has ended the launch, or a race, after which the launch has gone
/// on to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {thread}, {place}")]
#[non_exhaustive]
pub struct Fault {
    /// The reason.
    pub kind: FaultKind,
    /// The thread; the first one if several threads caused it.
    pub thread: Thread,
    /// The instruction.
    pub place: Place,
    /// The text that the kernel printed before.
    pub printed: Vec<u8>,
    /// The error that has ended the launch, if this is a race and it has not gone on to its end.
    pub end: Option<Box<Fault>>,
}

/// The checks of the sanitizer; each can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checks {
    /// Accesses beyond shared, local and parameter memory. If it is off, they read zeros and write
    /// nothing.
    pub out_of_bounds: bool,
    /// Accesses at an address that is not a multiple of their size. If it is off, they are made as
    /// they are.
    pub misaligned: bool,
    /// Uses of values that were read from shared and local memory which no thread has written: in
    /// an address, a branch, the predicate of an instruction with an effect, an atomic operation, a
    /// shuffle's source lane.
    pub uninitialised: bool,
    /// Accesses of two threads of a block to the same byte of shared memory without order.
    pub shared_races: bool,
    /// Accesses of two threads of a launch to the same byte of global memory without order.
    pub global_races: bool,
    /// Plain writes of two threads to the same byte that store the same value: a class of its own,
    /// part of the two above.
    pub equal_writes: bool,
    /// Barriers and warp operations that some threads left out, or reached at another place.
    pub divergence: bool,
}

impl Checks {
    /// Returns every check, but that of equal writes.
    #[must_use]
    pub const fn all() -> Self {
        Self {
            out_of_bounds: true,
            misaligned: true,
            uninitialised: true,
            shared_races: true,
            global_races: true,
            equal_writes: false,
            divergence: true,
        }
    }

    /// Returns no check.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            out_of_bounds: false,
            misaligned: false,
            uninitialised: false,
            shared_races: false,
            global_races: false,
            equal_writes: false,
            divergence: false,
        }
    }
}

impl Default for Checks {
    fn default() -> Self {
        Self::all()
    }
}

/// The bounds of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The maximum number of instructions; one that a warp executes for its lanes counts as one.
    pub instructions: u64,
    /// The maximum number of blocks that are resident at a time: multiprocessors times blocks of
    /// each.
    pub resident_blocks: u32,
    /// The maximum depth of calls.
    pub call_depth: u32,
    /// The maximum bytes of local memory of a thread.
    pub local_bytes: u32,
    /// The maximum bytes of shared memory of a block.
    pub shared_bytes: u32,
    /// The maximum bytes that `vprintf` may print.
    pub printed_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            instructions: 1 << 34,
            resident_blocks: 132 * 16,
            call_depth: 1024,
            local_bytes: 128 << 10,
            shared_bytes: 227 << 10,
            printed_bytes: 1 << 20,
        }
    }
}

/// The result of a launch that ended well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finished {
    /// The instructions that warps executed.
    pub instructions: u64,
    /// The time that has passed on the clock of the launch, in nanoseconds: 1 for each of these
    /// instructions, and the time for which threads slept or polled the clock.
    pub nanoseconds: u64,
    /// The instructions that threads executed: those of warps times their active lanes.
    pub thread_instructions: u64,
    /// The text that the kernel printed.
    pub printed: Vec<u8>,
}
