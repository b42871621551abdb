//! A parser and interpreter of NVIDIA's PTX: it runs the kernels of GPU programs without a GPU.
//!
//! It depends on no other crate of the project and calls no CUDA: `dmr-sim` runs the kernels of a
//! launch with it.
//!
//! ```rust
//! use dmr_ptx::{Access, AccessError, GlobalMemory, Launch, Program};
//!
//! /// Global memory: bytes from address 0x1000 on.
//! struct Memory(Vec<u8>);
//!
//! impl Memory {
//!     fn part(&mut self, access: &Access) -> Result<&mut [u8], AccessError> {
//!         let start = access.address.wrapping_sub(0x1000) as usize;
//!         let end = start.saturating_add(access.bytes as usize);
//!         let refused = self.0.len().saturating_sub(start) as u32;
//!         self.0.get_mut(start..end).ok_or_else(|| AccessError::new(refused, "out of bounds"))
//!     }
//! }
//!
//! impl GlobalMemory for Memory {
//!     fn read(&mut self, access: &Access, into: &mut [u8]) -> Result<(), AccessError> {
//!         into.copy_from_slice(self.part(access)?);
//!         Ok(())
//!     }
//!     fn write(&mut self, access: &Access, bytes: &[u8]) -> Result<(), AccessError> {
//!         self.part(access)?.copy_from_slice(bytes);
//!         Ok(())
//!     }
//!     fn atomic(
//!         &mut self,
//!         access: &Access,
//!         change: &mut dyn FnMut(&mut [u8]),
//!     ) -> Result<(), AccessError> {
//!         change(self.part(access)?);
//!         Ok(())
//!     }
//! }
//!
//! let program = Program::load(
//!     ".version 8.0 .target sm_80 .address_size 64
//!      .visible .entry number(.param .u64 out) {
//!          .reg .b32 %r<2>; .reg .b64 %rd<3>;
//!          ld.param.u64 %rd1, [out];
//!          mov.u32 %r1, %tid.x;
//!          mul.wide.u32 %rd2, %r1, 4;
//!          add.u64 %rd1, %rd1, %rd2;
//!          st.global.u32 [%rd1], %r1;
//!          ret;
//!      }",
//! )?;
//! let kernel = program.kernel("number").ok_or("no such kernel")?;
//! let params = 0x1000u64.to_le_bytes();
//! let mut launch = Launch::new(&program, kernel, [1, 1, 1], [64, 1, 1]);
//! launch.params = &params;
//!
//! let mut memory = Memory(vec![0; 256]);
//! launch.run(&mut memory)?;
//! assert_eq!(memory.0[252], 63);
//!
//! // One element less: the last thread writes out of bounds.
//! let fault = launch.run(&mut Memory(vec![0; 252])).unwrap_err();
//! assert_eq!(fault.thread.thread, [63, 0, 0]);
//! assert_eq!(fault.place.line, 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The parts are crates of their own, and this one re-exports what users need of them:
//!
//! | crate | what it holds |
//! | --- | --- |
//! | `dmr-ptx-syntax` | text into a module, linking, fat binaries |
//! | `dmr-ptx-arith` | arithmetic on the lanes of a warp; shuffles, votes, matrix products |
//! | `dmr-ptx-exec` | a module into a program, and the execution of a launch: warps, memory, barriers, calls, races |

#![forbid(unsafe_code)]

#[doc(inline)]
pub use dmr_ptx_exec::{
    Access, AccessError, CallLine, Checks, Fault, FaultKind, Finished, Global, GlobalMemory,
    InitialBytes, Kernel, Launch, Limits, LoadError, Param, Place, Program, Qualifier, Relocation,
    Scope, SourceLine, SpaceName, Swizzle, TENSOR_MAP_BYTES, TensorDimension, TensorElement,
    TensorMap, Thread,
};
#[doc(inline)]
pub use dmr_ptx_syntax::{Type, fatbin};

pub mod syntax {
    //! PTX text into a module: declarations and instructions with their places in the text.

    #[doc(inline)]
    pub use dmr_ptx_syntax::module::*;
    #[doc(inline)]
    pub use dmr_ptx_syntax::{LinkError, ParseError, SpecialRegister, link, parse};
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
