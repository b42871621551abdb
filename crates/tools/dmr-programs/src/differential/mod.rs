//! Plays the same programs on the simulator and on a driver under test. A program in which the
//! simulator finds no race must show no wrong byte there, and each class of race must show some.
//!
//! A program is the lines of a random program of one thread, delays of streams in front of some of
//! them, and [`Handover`]s after some of them. Two programs of three declare every use. In the
//! others one more handover omits a declaration, as a user might forget it.
//!
//! The program is played twice. The *judge* is the simulator's race detector: it derives the order
//! of all operations from streams and events, and reads no bytes. The *driver under test* is a GPU,
//! or, without one, the simulated device under each [`Policy`] that executes work late; of that run
//! only the wrong bytes count that the checks of patterns have found.
//!
//! # Two runs of one program
//!
//! Both runs make the same calls of the library: seed, stack, configuration, lines and patterns are
//! the same, and no line depends on the progress of the device. The path of the library in a call
//! may differ, because it queries which work is done: a pool reuses memory of another stream whose
//! work is done, and uses other memory otherwise; a trim, a reap or a full pool can free more or
//! less memory. So blocks may have other neighbours, and a call may be out of memory in one run
//! only. The comparison is valid all the same:
//!
//! - A program that declares every use is correct on *every* path of the library: that is the
//!   contract. The judge has found no race on the path of its own run. A wrong byte in the other
//!   run is a fault of the library on that run's path, or of the simulator's rules; the test must
//!   fail in both cases.
//! - An omitted declaration is omitted on every path. Whether it leads to a race depends on
//!   the path in one respect: whether the next block has the same memory. So
//!   [`HandedOver::same_memory`] is compared first; where it differs between the runs, the program
//!   counts neither as clean nor as racy.
//!
//! [`Observation::path`] is a digest of the visible part of the path: the allocations that
//! succeeded, those of them that have the address of an earlier one, and the conflicts that the
//! calls reached. The test counts the programs whose digests differ.
//!
//! # Faults that show no wrong byte
//!
//! On `direct-tracked` a use after free and a use before allocation show no wrong byte: `cuMemFree`
//! waits for all work of the device, so no work uses the memory when it is reused. The judge finds
//! no race in these programs, and the test requires right bytes.
//!
//! The debug guard keeps a freed block in quarantine, so the next block has other memory. On
//! `guard-async` the wrong bytes come from the guard, which fills blocks when they are freed and
//! allocated.

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
