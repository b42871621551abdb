//! Trait, types and errors of stream-ordered GPU device memory. No CUDA in here.
//!
//! The crate answers one question: *what does a device memory resource promise?* The answer is
//! [`DeviceMemoryResource`]; everything else is a word of that sentence.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`resource`] | the trait and its forwarding to `&R`, `Box<R>`, `Arc<R>` |
//! | [`block`] | [`DeviceBlock`], one allocation, and [`BlockId`], its `Copy` identity |
//! | [`part`] | [`WholeBlock`]: parts of a block, and restoring the whole |
//! | [`virtual_memory`] | [`VirtualMemory`], addresses and pages apart |
//! | [`stream`] | [`StreamId`], the opaque name of a stream |
//! | [`usage`] | [`Usage`], the accounting of a resource |
//! | [`uses`] | [`Access`], and the tokens between preparing and finishing a use |
//! | [`tracking`] | [`UseTracking`]: preparing and finishing uses |
//! | [`ledger`] | which waits a use needs, and what is remembered of it: pure code |
//! | [`error`] | [`ResourceError`], [`DeallocateError`] |
//! | [`tag`] | [`AllocTag`], who asked |
//! | [`record`] | [`AllocationRecord`], one row of a log or a trace |
//! | [`at_exit`] | hooks for a normal end of the process |
//! | [`observer`] | [`MemoryObserver`], told what a pool carves up |
//! | [`sync`] | locks without poison |
//! | [`process`] | [`Process`], to tell a forked child |
//! | [`ops`] | [`DeviceOps`], the device operations that guards and verifiers need |
//! | `conformance` | the contract as a suite (feature `conformance`) |

pub mod at_exit;
pub mod block;
#[cfg(feature = "conformance")]
pub mod conformance;
mod corruption;
pub mod error;
pub mod generation;
pub mod ledger;
pub mod observer;
pub mod ops;
pub mod part;
pub mod process;
pub mod record;
pub mod resource;
mod shortage;
pub mod size;
pub mod stream;
pub mod sync;
pub mod tag;
pub mod tracking;
pub mod usage;
pub mod uses;
pub mod virtual_memory;

pub use block::{BlockId, BlockParts, BlockSlot, BlockState, DeviceBlock};
pub use error::{Corruption, CorruptionKind, DeallocateError, ResourceError, ResourceResult};
pub use generation::Generation;
pub use observer::MemoryObserver;
pub use ops::{DeviceOps, PatternMismatch};
pub use part::WholeBlock;
pub use process::Process;
pub use record::AllocationRecord;
pub use resource::DeviceMemoryResource;
pub use stream::{StreamId, StreamPoolId};
pub use tag::AllocTag;
pub use tracking::{UseTracking, UseTrackingExt};
pub use usage::Usage;
pub use uses::{Access, BlockUse, UseToken, UseTokens};
pub use virtual_memory::{
    AddressRange, PhysicalMemory, RefusedMemory, RefusedRange, VirtualMemory,
};
