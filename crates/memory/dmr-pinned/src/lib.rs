//! Page-locked host memory: pooled, tracked in the use table, and allocated again when its uses are
//! done.
//!
//! Locking memory is slow and may wait for the device, so the driver locks it in segments, which
//! the pool cuts into blocks. The order of streams does not suffice for allocating a block again,
//! as it does for device memory: the next access is the host's. So memory that was dropped stays
//! *retired* until the device is known to be done with it.
//!
//! Each stream pool has one such pool, as its [`Attachment`](dmr_streams::Attachment).
//!
//! | module | what it contains |
//! | --- | --- |
//! | [`pool`] | [`PinnedPool`]: blocks, from the allocation until their uses are done |
//! | [`resource`] | [`PinnedResource`], the pool as a resource |
//! | [`memory`] | [`PinnedMemory`], a block that is deallocated when it is dropped |
//! | `segments`, `driver` | memory from the driver, and back to it; its calls |
//! | `heap`, `bins` | segments, cut into chunks; make no driver call |
//! | `orphans` | segments of stream pools that were dropped |

#![allow(unsafe_code, reason = "calls the CUDA driver, which is a C library")]

mod bins;
mod driver;
mod heap;
pub mod memory;
mod orphans;
pub mod pool;
pub mod resource;
mod segments;

pub use dmr_streams::{PinnedKind, PinnedResources};
pub use memory::PinnedMemory;
pub use orphans::reap_orphaned_pinned;
pub use pool::PinnedPool;
pub use resource::PinnedResource;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
