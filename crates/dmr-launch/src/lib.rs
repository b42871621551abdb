//! Launch recorder: a launch waits for exactly what it must.
//!
//! The crate answers one question: *which memory does this launch touch, and what must it
//! therefore wait for?* A [`LaunchRecorder`] is told, and does the rest.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`recorder`] | [`LaunchRecorder`], told what a launch uses |
//! | [`preflighted`] | [`PreflightedLaunch`], between waiting and recording |
//! | [`error`] | [`PreflightError`], [`LaunchError`]: at which step, which memory, why |
//!
//! # Steps
//!
//! 1. **Record** what the launch uses. Each call hands out a
//!    [`KernelArg`](dmr_streams::KernelArg) and holds no borrow.
//! 2. **Preflight**: the stream waits for what the uses must come after. All or none.
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
