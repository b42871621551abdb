//! Random programs against every stack, from one generator.
//!
//! A [`Program`] is plain data, and readable text: a stack, some streams, and lines that threads
//! execute. The player executes it and compares what the stack does with what it must do; the
//! simulator reports races, checks of patterns find wrong bytes, `usage` must be exact, and nothing
//! may be left at the end. What fails is shrunk to the fewest lines that fail in the same way.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`program`], [`text`] | programs, as data and as text |
//! | [`generate`] | programs from seeds |
//! | [`stack`], [`watched`] | the stacks, and what tells the simulator of a pool's memory |
//! | [`player`], `crew`, `watch` | execution: steps, threads, holds and faults |
//! | [`failure`], [`conflicts`] | what a program has shown, and which conflicts it has reached |
//! | [`run`], [`shrink`] | many programs; and the smallest that fails |
//! | [`differential`] | the same programs on the simulator and on a GPU |
//! | [`known`] | failures that are known |
//!
//! Used from tests and by its own command only. It panics where a test would.

#![allow(unsafe_code, reason = "work in an open window needs the block that was given back; forks")]

pub mod conflicts;
pub mod crew;
pub mod differential;
pub mod failure;
pub mod generate;
pub mod known;
pub mod player;
pub mod program;
pub mod random;
pub mod run;
pub mod shrink;
pub mod stack;
pub mod text;
mod watch;
pub mod watched;

pub use conflicts::{Conflict, Counts};
pub use failure::{Failure, FailureKind};
pub use program::Program;
pub use stack::Stack;
