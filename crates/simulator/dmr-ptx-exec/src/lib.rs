//! Programs and their execution: warps, memory, barriers, calls, and the detectors of races.
//!
//! A part of `dmr-ptx`, which re-exports what users need and has an example.
//!
//! # How a launch runs
//!
//! One host thread runs everything, so a launch on the same memory has the same result every time.
//! A warp has one register file of 32 lanes and a list of *lane groups*: lanes with one program
//! counter and one call stack. It starts as one group.
//!
//! - **Divergence.** A branch that lanes take differently splits their group in two. Groups with
//!   the same program counter and stack are joined again before the next one is chosen
//!   (`Warp::merge`): there are no reconvergence points. The ready group that is deepest in calls
//!   and then lowest in the program runs, until another one comes first; code is laid out so that
//!   the lowest is mostly the one that the others would wait for behind a branch.
//! - **Progress.** A group that was passed over for 1,024 instructions runs next whatever its rank,
//!   and a group that polls lets the others run, so that lanes of one warp may wait for each other,
//!   as since Volta. An atomic read that finds the value that it found before is a poll.
//! - **Blocks.** Each round runs every warp of every resident block for a slice of 1,024
//!   instructions. Blocks become resident one after another: half as many again when all resident
//!   warps poll or wait, or after 256 rounds in which no block has ended. A launch in which all of
//!   them poll, no store changes memory and no further block can start has failed (`NoProgress`).
//! - **Barriers.** A group that arrives at a barrier waits in the list of its warp. After each
//!   slice the block completes the barriers at which all expected threads have arrived; those that
//!   have exited are not expected. Operations between lanes (`shfl.sync`) are run by the group that
//!   arrives last, for all lanes that take part.
//!
//! # How a race is found
//!
//! Threads are not run in parallel: a race is two accesses of one byte, one of them writing, that
//! nothing orders. Only the first race of a launch is reported. There are two detectors, because
//! shared memory is small and its synchronisation is known exactly, and global memory is neither.
//!
//! - **Shared memory** (`shadow`, `order`): for each word, or byte where words are accessed in
//!   part, the last write and two reads since. Barriers, `bar.warp.sync` and fences with atomic
//!   accesses order threads by vector clocks, one entry for each warp. It misses races between
//!   single lanes and other warps after a fence, since a warp is ordered as a whole, and accesses
//!   of the shared memory of another block of the cluster.
//! - **Global memory** (`races`): the same for each sector of 32 bytes, split where lanes access
//!   parts of it. Within a block the order is that of `order`. Between blocks, any fence of the one
//!   before any atomic access of the other orders everything before it: flags and locks that fence
//!   what they publish are never reported, and races behind an unrelated flag are missed. Beyond
//!   512 MiB of records everything is forgotten.
//!
//! Asynchronous copies have a third list (`in_flight`): the bytes of a copy are there at once, and
//! until a thread waits for the copy an access to them is a race with it.
//!
//! # Undefined values
//!
//! A read of shared or local memory that no thread has written is no fault: merge loops load one
//! element too many and drop it. Its bits are *undefined*, and are followed from register to
//! register (`follow`): through moves, logic and shifts bit by bit, through any other instruction
//! as a whole. Calls (`control`), operations between lanes (`sync`) and matrices in memory
//! (`atomics`) follow them themselves, because they have lanes and registers that the instruction
//! does not name. They are reported where they matter, in an address, a branch or an atomic
//! operation. A store of them makes memory unwritten again. As long as no register is undefined,
//! all this costs one test an instruction.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `program`, `code` | a loaded module: kernels, globals, decoded instructions |
//! | `load` | a parsed module into a program |
//! | `launch`, `schedule` | a launch; its resident blocks, and the turns of their warps |
//! | `special` | the special registers of a warp |
//! | `interpreter` | the groups of a warp, and one instruction after another |
//! | `execute` | one instruction |
//! | `registers` | the registers of a warp, and which of them are uniform |
//! | `warp`, `block` | the state of a warp and of a block; barriers |
//! | `control`, `sync` | branches and calls; operations between lanes |
//! | `transfer` | loads and stores |
//! | `memory`, `atomics`, `atomic`, `space` | accesses to the spaces, and the windows of generic addresses |
//! | `mbarrier`, `mbarriers`, `copies`, `tensor_map`, `tensors`, `in_flight` | `mbarrier` objects, and asynchronous copies until they are waited for |
//! | `cluster` | clusters of blocks: their barrier, and the shared memory of other blocks |
//! | `undefined`, `follow` | values that were read where no thread has written, and where they get to |
//! | `access`, `order`, `shadow`, `conflict`, `races` | which accesses are ordered, the last ones to each byte of shared and global memory, and the report of a race |
//! | `clock` | the time that threads read |
//! | `global` | global memory, which the caller provides |
//! | `workspace` | the memory in which the blocks of a cooperative launch meet |
//! | `fault` | checks, limits, and what ends a launch |
//! | `printf` | `vprintf` and `__assertfail` |

#![forbid(unsafe_code)]

mod access;
mod atomic;
mod atomics;
mod block;
mod clock;
mod cluster;
mod code;
mod conflict;
mod control;
mod copies;
mod execute;
mod fault;
mod follow;
mod global;
mod in_flight;
mod interpreter;
mod launch;
mod load;
mod mbarrier;
mod mbarriers;
mod memory;
mod order;
mod printf;
mod program;
mod races;
mod registers;
mod schedule;
mod shadow;
mod space;
mod special;
mod sync;
mod tensor_map;
mod tensors;
mod transfer;
mod undefined;
mod warp;
mod workspace;

pub use fault::{
    CallLine, Checks, Fault, FaultKind, Finished, Limits, Place, SourceLine, SpaceName, Thread,
};
pub use global::{Access, AccessError, GlobalMemory, Qualifier, Scope};
pub use launch::Launch;
pub use program::{Global, InitialBytes, Kernel, LoadError, Param, Program, Relocation};
pub use tensor_map::{Swizzle, TENSOR_MAP_BYTES, TensorDimension, TensorElement, TensorMap};
