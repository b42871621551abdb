//! The resources of RAPIDS' RMM as resources of dmr.
//!
//! [`Rmm`] is the library `libdmr_rmm.so`, which is built of `shim/shim.cpp` and RMM's package, and
//! loaded when the program runs: so this crate is built without RMM, and without a C++ compiler.
//! [`RmmResource`] is one resource of RMM. It does not track uses; [`Tracked`] around it does.
//!
//! [`Tracked`]: dmr_streams::Tracked

#![allow(unsafe_code, reason = "calls RMM through C functions, and makes blocks of its memory")]

mod config;
mod library;
mod raw;
mod resource;

pub use config::{RmmConfig, RmmKind};
pub use library::{Rmm, RmmError, RmmVersion};
pub use resource::RmmResource;
