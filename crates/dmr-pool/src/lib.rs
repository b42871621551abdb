//! A pool: carves up the memory of any resource, with use tracking.
//!
//! [`PoolResource`] takes memory from upstream in large pieces and hands out parts of it, so that
//! an allocation or a free that finds what it needs makes no driver call. Memory moves between
//! streams with the waits that it takes, and no others.
//!
//! | module | what it is for |
//! | --- | --- |
//! | `heap` | chunks of memory, found by size; knows no streams |
//! | `arena` | the memory that one stream had first: its heap, and what other streams may still use |
//! | `acquire` | where memory comes from when a stream's own arena has none at hand |
//! | `give_back` | where a chunk goes that its owner has freed |
//! | `segments` | memory from upstream, and its way back |
//! | `pages` | the same in pages that the pool maps itself |
//! | `in_flight` | what is on its way back, so that nobody is refused who missed it |
//! | `in_place` | growing a block where it is |
//! | `observed` | telling a memory checker what is carved up |
//! | `slack` | how much may be kept before memory is saved at the cost of time |
//! | `stats` | what a pool holds, in numbers and as a map |

mod acquire;
mod arena;
mod config;
mod give_back;
mod heap;
mod in_flight;
mod in_place;
mod observed;
mod pages;
mod pending;
mod resource;
mod segments;
mod slack;
mod stats;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod work;

pub use config::PoolConfig;
pub use resource::PoolResource;
pub use stats::{FreeChunks, HeapRegion, PoolStats, RegionState};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
