//! Random programs against every stack, from one generator.
//!
//! A [`Program`] is plain data, which can be printed and parsed: a stack, some streams, and lines
//! that threads execute. The player executes it and compares each result of the stack with the
//! contract. The simulator reports races, checks of patterns find wrong bytes, `usage` must be
//! exact, and no memory may be left at the end. A program that fails is shrunk to the fewest lines
//! that fail in the same way.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`program`], [`text`] | programs, as data and as text |
//! | [`generate`], [`calls`] | programs from seeds; the driver calls that are held and failed |
//! | [`stack`], [`watched`] | the stacks, and an upstream that reports a pool's memory to the simulator |
//! | [`player`], `crew`, `watch` | execution: steps, threads, holds and faults |
//! | [`failure`], [`conflicts`] | kinds of failures, and the conflicts that programs have reached |
//! | [`run`], [`shrink`] | runs of many programs; shrinking of a failing one |
//! | [`differential`] | the same programs on the simulator and on a GPU |
//! | [`known`] | known failures: not fixed yet, by name |
//!
//! Only tests and the command of this crate use it. It panics where a test would.

#![allow(unsafe_code, reason = "work in an open window needs the deallocated block; forks")]

pub mod calls;
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
