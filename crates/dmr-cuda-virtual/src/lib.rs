//! GPU memory from the driver's virtual memory: addresses are reserved, physical memory is
//! created, and one is mapped under the other.
//!
//! [`VirtualCudaResource`] offers both halves ([`VirtualMemory`](dmr_core::VirtualMemory)) to a
//! pool that places pages itself, and blocks made of them to everybody else.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`config`] | [`VirtualConfig`]: what memory can do that was created, and cannot be changed later |
//! | [`error`] | [`VirtualMemoryError`]: why a device has no such memory |
//! | `resource`, `retired` | the resource: blocks, and those that wait for their stream |
//! | `pages` | [`VirtualMemory`](dmr_core::VirtualMemory) |
//! | `driver` | the driver's calls |

#![allow(unsafe_code, reason = "calls the driver, and makes blocks and pages of what it gives")]

pub mod config;
mod driver;
pub mod error;
mod pages;
mod resource;
mod retired;

pub use config::{ExportHandle, VirtualConfig};
pub use error::VirtualMemoryError;
pub use resource::VirtualCudaResource;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
