//! Plays the same programs on the simulator and on a driver under test. A program in which the simulator
//! finds no race must show no wrong byte there, and each class of race must show some.
//!
//! A program is the lines of a random program of one thread, delays of streams in front of some of
//! them, and [`Handover`]s after some of them. Two programs of three declare every use. In the
//! others one more handover leaves a declaration out, as a user might forget it.
//!
//! The program is played twice. The *judge* is the simulator's race detector: it derives the order
//! of all operations from streams and events, and reads no bytes. The *driver under test* is a GPU,
//! or, without one, the simulated device under each [`Policy`] that executes work late; of that run
//! only the wrong bytes count that the checks of patterns found.
//!
//! # Two runs of one program
//!
//! Both runs make the same calls of the library: seed, stack, configuration, lines and patterns are
//! the same, and no line depends on what the device has done. What the library does in a call may
//! differ, because it queries which work is done: a pool reuses memory of another stream whose work
//! is done, and takes other memory otherwise; a trim, a reap or a full pool find more or less to
//! free. So blocks may have other neighbours, and a call may be out of memory in one run only. The
//! comparison holds all the same:
//!
//! - A program that declares every use is right on *every* path of the library: that is the
//!   contract. The judge has found no race on the path of its own run. A wrong byte in the other
//!   run is a fault of the library on that run's path, or of the simulator's rules; the test must
//!   fail in both cases.
//! - A declaration that is left out is left out on every path. Whether it leads to a race depends on
//!   the path in one respect: whether the next block has the same memory. So
//!   [`HandedOver::same_memory`] is compared first; where it differs between the runs, the program
//!   counts neither as clean nor as racy.
//!
//! [`Observation::path`] is a digest of what is visible of the path: which allocations succeeded,
//! which of them have the address of an earlier one, and which conflicts the calls reached. The
//! test counts the programs whose digests differ.
//!
//! # Faults that show no wrong byte
//!
//! On `direct-tracked` a use after free and a use before allocation show no wrong byte: `cuMemFree` waits for
//! all work of the device, so no work uses the memory when it is reused. The judge finds no race in
//! these programs, and the test requires right bytes.
//!
//! The debug guard keeps a freed block in quarantine, so the next block has other memory. On
//! `guard-async` the wrong bytes come from the guard, which fills blocks when they are freed and allocated.

mod draw;
mod play;
mod tally;

pub use draw::{Delays, Differential, draw};
pub use play::{Observation, Stage};
pub use tally::{Tally, Verdict};

#[cfg(doc)]
use dmr_sim::Policy;

#[cfg(doc)]
use crate::player::{HandedOver, Handover};
