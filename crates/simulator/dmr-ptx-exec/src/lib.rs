//! Programs and their execution: warps, memory, barriers, calls, and the detectors of races.
//!
//! A part of `dmr-ptx`, which re-exports what users need and has an example.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `program`, `code` | a loaded module: kernels, globals, decoded instructions |
//! | `load` | a parsed module into a program |
//! | `launch` | a launch: resident blocks, and the turns of their warps |
//! | `special` | the special registers of a warp |
//! | `interpreter` | the groups of a warp, and one instruction after another |
//! | `execute` | one instruction |
//! | `registers` | the registers of a warp, and which of them are uniform |
//! | `warp`, `block` | the state of a warp and of a block; barriers |
//! | `control`, `sync` | branches and calls; operations between lanes |
//! | `transfer` | loads and stores |
//! | `memory`, `atomics`, `atomic`, `space` | accesses to the spaces, and the windows of generic addresses |
//! | `mbarriers`, `copies`, `tensors`, `in_flight` | `mbarrier` objects, and asynchronous copies until they are waited for |
//! | `cluster` | clusters of blocks: their barrier, and the shared memory of other blocks |
//! | `undefined` | values that were read where no thread has written |
//! | `order`, `shadow`, `conflict` | which accesses are ordered, the last ones to each byte of shared memory, and the report of a race |
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
