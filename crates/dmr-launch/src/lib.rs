//! Launch recorder: a launch waits for exactly what it must.
//!
//! A [`LaunchRecorder`] records the memory that a launch uses, makes its stream wait for the uses that it
//! depends on, and records the launch for later uses.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`recorder`] | [`LaunchRecorder`], which records the uses of a launch |
//! | [`prepared`] | [`PreparedLaunch`], between waiting and recording |
//! | [`error`] | [`PrepareError`], [`LaunchError`]: at which step, which memory, why |
//!
//! # Steps
//!
//! 1. **Record** the uses of the launch. Each call returns a
//!    [`KernelArg`](dmr_streams::KernelArg) and holds no borrow.
//! 2. **Prepare**: the stream waits for the dependencies of the uses. All or none.
//! 3. **Enqueue** the work, with the kernel arguments.
//! 4. **Finish**: others now wait for this use.
//!
//! [`LaunchRecorder::launch`] is steps 2 to 4 in one call.
//!
//! # Features
//!
//! `tracing` reports launches that were dropped unfinished, as warnings.

#![forbid(unsafe_code)]

pub mod error;
pub mod prepared;
pub mod recorder;
mod windows;

pub use error::{LaunchError, PrepareError};
pub use prepared::PreparedLaunch;
pub use recorder::{LaunchMode, LaunchRecorder};
pub use windows::unfinished_launches;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
