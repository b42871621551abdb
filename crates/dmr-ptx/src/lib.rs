//! A parser and interpreter of NVIDIA's PTX: it runs the kernels of GPU programs without a GPU.
//!
//! It depends on no other crate of the project and calls no CUDA: `dmr-sim` runs the kernels of a launch with it.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `types` | the scalar types of PTX, and the 32 lanes of a warp's register |
//! | `syntax` | text into a module: declarations and instructions with their places in the text |
//! | `fatbin` | module images: PTX text, alone or in a fat binary |
//! | `arith` | arithmetic, conversion and bit instructions, on the lanes of registers |
//! | `lanes` | instructions between the lanes of a warp: shuffles, votes, matrix products |
//! | `mbarrier` | the barrier objects of shared memory, as functions on their bits |
//! | `races` | the accesses of a launch to global memory, and those that race |
//! | `exec` | a module into a program, and the execution of a launch: warps, memory, barriers, calls |

#![forbid(unsafe_code)]

mod arith;
mod exec;
pub mod fatbin;
mod lanes;
mod mbarrier;
mod races;
pub mod syntax;
mod types;

pub use exec::{
    Access, AccessError, AccessKind, Checks, Fault, FaultKind, Finished, Global, GlobalMemory,
    InitialBytes, Kernel, Launch, Limits, LoadError, Param, Place, Program, Relocation, Scope,
    SourceLine, SpaceName, Thread,
};
pub use types::Type;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
