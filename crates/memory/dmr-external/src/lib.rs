//! Memory of other owners as blocks of stream-ordered GPU memory.
//!
//! A program that gets device memory from another library, as a tensor or a column, *adopts* it
//! with the stream or the event behind which its producer has written it. From then on it is a
//! block like any other: launches on any stream are ordered, and it is deallocated. What ends it is
//! its owner: a value that is dropped once, when the last use is done.
//!
//! | module | what it contains |
//! | --- | --- |
//! | [`foreign`] | [`ForeignBlocks`], which adopts [`ForeignMemory`] and drops its owner after the last use |
//! | [`ready`] | [`Ready`], the work of the producer that comes first |
//! | [`blocks`] | [`AdoptedBlocks`]: adopted memory of one kind as a resource, for crates that adopt memory |
//! | `table` | the adopted blocks of a stream pool: into the use table, out of it, ended |
//! | `held` | the memory of blocks that are live, and of blocks that wait for the device |
//! | `releaser` | the thread that drops owners |

#![allow(unsafe_code, reason = "calls the CUDA driver, which is a C library")]

mod address;
pub mod blocks;
pub mod foreign;
mod held;
pub mod ready;
mod releaser;
mod table;

pub use blocks::{AdoptedBlocks, AdoptedMemory, ReservedSlot, TakenBlock};
pub use foreign::{AdoptError, ForeignBlocks, ForeignMemory, Owner};
pub use ready::Ready;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
