//! Launch recorder: a launch waits for exactly what it must.
//!
//! A [`LaunchRecorder`] records the memory that a launch uses, makes its stream wait for the uses that it
//! depends on, and records the launch for later uses.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`recorder`] | [`LaunchRecorder`], which records the uses of a launch |
//! | [`preflighted`] | [`PreflightedLaunch`], between waiting and recording |
//! | [`error`] | [`PreflightError`], [`LaunchError`]: at which step, which memory, why |
//!
//! # Steps
//!
//! 1. **Record** the uses of the launch. Each call returns a
//!    [`KernelArg`](dmr_streams::KernelArg) and holds no borrow.
//! 2. **Preflight**: the stream waits for the dependencies of the uses. All or none.
//! 3. **Enqueue** the work, with the kernel arguments.
//! 4. **Commit**: others now wait for this use.
//!
//! [`LaunchRecorder::launch`] is steps 2 to 4 in one call.
//!
//! # Features
//!
//! `tracing` reports launches that were dropped without a commit, as warnings.

#![forbid(unsafe_code)]

pub mod error;
pub mod preflighted;
pub mod recorder;
mod windows;

pub use error::{LaunchError, PreflightError};
pub use preflighted::PreflightedLaunch;
pub use recorder::{LaunchMode, LaunchRecorder};
pub use windows::uncommitted_launches;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
