//! GPU memory by virtual memory management: addresses are reserved, physical memory is created, and
//! memory is mapped at addresses.
//!
//! [`VirtualCudaResource`] is the upstream of a pool that maps pages itself
//! ([`VirtualMemory`](dmr_core::VirtualMemory)), and a backend whose blocks are mapped memory.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`config`] | [`VirtualConfig`]: properties of created memory, which cannot be changed later |
//! | [`error`] | [`VirtualMemoryError`]: the device lacks virtual memory as configured |
//! | `memory` | [`VirtualMemory`](dmr_core::VirtualMemory): addresses, memory, mappings |
//! | `resource`, `retired` | blocks, and freeing them when their stream is done |
//! | `driver` | the driver calls |

#![allow(
    unsafe_code,
    reason = "calls the driver, and makes ranges, memory and blocks of what it returns"
)]

pub mod config;
mod driver;
pub mod error;
mod memory;
mod resource;
mod retired;

pub use config::{ExportHandle, VirtualConfig};
pub use error::VirtualMemoryError;
pub use resource::VirtualCudaResource;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
