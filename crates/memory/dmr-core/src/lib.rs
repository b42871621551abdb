//! Trait, types and errors of stream-ordered GPU device memory. No CUDA in here.
//!
//! The crate defines what a device memory resource promises: [`DeviceMemoryResource`], its types
//! and its errors.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`resource`] | the trait and its forwarding to `&R`, `Box<R>`, `Arc<R>` |
//! | [`forward!`] | the macro by which adaptors forward methods |
//! | [`block`] | [`DeviceBlock`], one allocation, and [`BlockId`], its `Copy` identity |
//! | [`bytes`] | [`ByteRange`], the bytes of a block that a use reads or writes |
//! | [`host`] | [`HostMemoryResource`]: the promise that blocks are host memory |
//! | [`part`] | [`WholeBlock`]: parts of a block, and restoring the whole |
//! | [`peer`] | [`PeerAccess`]: memory that another device can access |
//! | [`virtual_memory`] | [`VirtualMemory`]: reserved addresses, physical memory, mappings |
//! | [`stream`] | [`StreamId`], the opaque id of a stream |
//! | [`usage`] | [`Usage`], the accounting of a resource |
//! | [`uses`] | [`Access`], and the tokens between preparing and finishing a use |
//! | [`tracking`] | [`UseTracking`]: preparing and finishing uses |
//! | [`ledger`] | the waits that a use needs, and the record of past uses: pure code |
//! | [`error`] | [`ResourceError`], [`DeallocateError`] |
//! | [`tag`] | [`AllocTag`], the purpose of an allocation |
//! | [`record`] | [`AllocationRecord`], one row of a log or a trace |
//! | [`at_exit`] | hooks for a normal end of the process |
//! | [`observer`] | [`MemoryObserver`], to which a pool reports its blocks |
//! | [`upstream`] | checks of the blocks that an upstream resource returns |
//! | [`panics`] | calls of the program's code whose panics are caught |
//! | [`sync`], [`spinlock`] | locks without poison; [`SpinLock`] |
//! | [`append_list`] | [`AppendList`](append_list::AppendList), a list that is read without a lock |
//! | [`process`] | [`Process`], which detects a forked child |
//! | [`ops`] | [`DeviceOps`], the device operations that guards and verifiers need |
//! | [`waits`] | [`wait_at_most`], the time that a thread lets the host wait for device work |
//! | `conformance` | the contract as a suite (feature `conformance`) |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod access;
pub mod append_list;
pub mod at_exit;
pub mod block;
pub mod bytes;
#[cfg(feature = "conformance")]
pub mod conformance;
mod corruption;
pub mod error;
mod forward;
pub mod generation;
mod given_away;
pub mod host;
mod human;
pub mod ledger;
pub mod observer;
pub mod ops;
pub mod panics;
pub mod part;
pub mod peer;
pub mod process;
pub mod record;
pub mod resource;
mod shortage;
pub mod size;
pub mod spinlock;
pub mod stream;
pub mod sync;
pub mod tag;
pub mod tracking;
pub mod upstream;
pub mod usage;
pub mod uses;
pub mod virtual_memory;
pub mod waits;

pub use access::Access;
pub use block::{BlockId, BlockParts, BlockSlot, BlockState, DeviceBlock};
pub use bytes::ByteRange;
pub use error::{Corruption, CorruptionKind, DeallocateError, ResourceError, ResourceResult};
pub use generation::Generation;
pub use given_away::DriverAllocation;
pub use host::HostMemoryResource;
pub use observer::{CaughtObserver, MemoryObserver};
pub use ops::{DeviceOps, PatternMismatch};
pub use part::WholeBlock;
pub use peer::PeerAccess;
pub use process::Process;
pub use record::AllocationRecord;
pub use resource::DeviceMemoryResource;
pub use spinlock::{SpinLock, SpinLockGuard};
pub use stream::{StreamId, StreamPoolId};
pub use tag::AllocTag;
pub use tracking::{UseTracking, UseTrackingExt};
pub use usage::Usage;
pub use uses::{BlockUse, UseToken, UseTokens};
pub use virtual_memory::{AddressRange, DestroyError, PhysicalMemory, ReleaseError, VirtualMemory};
pub use waits::wait_at_most;
