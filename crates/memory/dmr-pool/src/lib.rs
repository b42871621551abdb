//! A pool: cuts blocks from the memory of any resource, with use tracking.
//!
//! [`PoolResource`] reserves memory from upstream in large steps and cuts blocks from it, so that
//! an allocation or a free that finds what it needs makes no driver call. Memory moves between
//! streams with the waits that it needs, and no others.
//!
//! | module | what it is for |
//! | --- | --- |
//! | `heap` | chunks of memory, found by size; independent of streams |
//! | `span` | the addresses that chunks are cut from, and the memory behind them: blocks or pages |
//! | `arena` | a stream's memory: its spans, and the free and pending chunks cut from them |
//! | `acquire`, `ladder` | the ladder: where memory comes from when the own arena has none free |
//! | `lend` | chunks that change hands between streams |
//! | `grow` | memory from upstream: how much, and segments |
//! | `trim` | the way of memory back to upstream |
//! | `claim` | the bytes that the pool has from upstream, and those that it is about to take |
//! | `pages` | growing in pages that the pool maps itself |
//! | `transit` | memory in the hands of threads, which others wait for before they refuse |
//! | `deallocate` | where the chunk of a freed block goes |
//! | `in_place` | growing a block where it is |
//! | `observed`, `regions` | reports of blocks to a memory checker |
//! | `slack` | how much may be kept before memory is saved at the cost of time |
//! | `stats` | what a pool holds, in numbers and as a map |

mod acquire;
mod arena;
mod claim;
mod config;
mod deallocate;
mod grow;
mod heap;
mod idle;
mod in_place;
mod ladder;
mod lend;
mod look;
mod observed;
mod pages;
mod recorded;
mod regions;
mod resource;
mod slack;
mod span;
mod stats;
mod sync;
#[cfg(test)]
mod tests;
mod transit;
mod trim;
mod warm;

pub use config::PoolConfig;
pub use heap::RegionState;
pub use ladder::StepCounts;
pub use resource::PoolResource;
pub use stats::{FreeChunks, HeapRegion, PoolStats};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
