//! Launch recorder: a launch waits for exactly what it must.
//!
//! A [`LaunchRecorder`] records the memory that a launch uses, makes its stream wait for the uses
//! that it depends on, and records the launch for later uses.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`recorder`] | [`LaunchRecorder`], which records the uses of a launch |
//! | [`footprint`] | [`Footprint`], the uses of work that is submitted again and again |
//! | [`memory`] | [`Reads`], [`Writes`], [`ReadsAndWrites`]: memory that is recorded together with its views |
//! | [`peer`] | memory of another device that a launch accesses: [`LaunchRecorder::read_peer`] |
//! | [`views`] | [`LaunchView`], [`LaunchViewMut`]: what cuBLAS and the other wrappers of cudarc take |
//! | [`host_slice`] | [`PinnedLaunchView`]: pinned memory for cudarc's copies between the device and the host |
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
//! [`LaunchRecorder::launch`] is steps 2 to 4 in one call, [`LaunchRecorder::launch_with`] all
//! four.
//!
//! # Features
//!
//! `cudarc`, on by default: views for the wrappers of cudarc, and
//! [`launch_with`](LaunchRecorder::launch_with). `tracing` reports launches that were dropped
//! unfinished, as warnings.

pub mod error;
pub mod footprint;
#[cfg(feature = "cudarc")]
pub mod host_slice;
mod launched;
#[cfg(feature = "cudarc")]
mod lent;
#[cfg(feature = "cudarc")]
pub mod memory;
mod mode;
mod others;
pub mod peer;
mod peer_uses;
pub mod prepared;
pub mod recorder;
mod submit;
mod uses;
#[cfg(feature = "cudarc")]
pub mod views;
mod windows;

pub use error::{LaunchError, PrepareError};
pub use footprint::Footprint;
#[cfg(feature = "cudarc")]
pub use host_slice::PinnedLaunchView;
#[cfg(feature = "cudarc")]
pub use memory::{LaunchMemory, Reads, ReadsAndWrites, Writes};
pub use prepared::PreparedLaunch;
pub use recorder::{LaunchMode, LaunchRecorder};
#[cfg(feature = "cudarc")]
pub use views::{LaunchView, LaunchViewMut};
pub use windows::unfinished_launches;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
