//! Spilling: cold device buffers move to pinned host memory when memory runs out, and back when
//! they are used.
//!
//! A [`Spill`] is a registry of buffers for the streams of one pool. A buffer that is inserted
//! becomes a [`Spillable`]: it may be moved to the host (*spilled*) whenever no guard of it lives,
//! and is moved back (*restored*) when a guard is requested.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`spill`] | [`Spill`], the registry, which selects what to spill |
//! | [`spillable`] | [`Spillable`], a buffer that may be spilled; [`OnDevice`], [`OnDeviceMut`], its guards; [`KeptOnDevice`], for graphs |
//! | [`stats`] | [`SpillStats`]: bytes on the device, in use and on the host |
//! | [`error`] | [`SpillError`], [`NotInserted`] |
//!
//! # Order
//!
//! Both copies are recorded uses, as any copy of a buffer is. A spill copies on a stream of its
//! own, after all recorded uses of the buffer, and the memory of the buffer is freed after that
//! copy. A restore allocates memory and copies on the stream that the caller names; uses on other
//! streams wait for it. Neither waits for the device. Work that was submitted to a buffer's home
//! stream without a record is not waited for: record every use of a spillable buffer.
//!
//! # Out of memory
//!
//! [`Spill::callback`] goes into a
//! [`FailureCallbackLayer`](dmr_adaptors::callbacks::FailureCallbackLayer): an allocation that the
//! device or a budget refuses spills as many bytes as it needs and 1/16 of the cold bytes at least,
//! coldest buffers first, and is tried again. The layer waits until the spilled memory is free
//! (`reap_pending`). A restore allocates through the resource that the buffer was made with, so it
//! may spill other buffers in turn.

#![forbid(unsafe_code)]

mod entry;
pub mod error;
pub mod spill;
pub mod spillable;
pub mod stats;

pub use error::{NotInserted, SpillError};
pub use spill::Spill;
pub use spillable::{KeptOnDevice, OnDevice, OnDeviceMut, Spillable};
pub use stats::{Amount, SpillStats};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
