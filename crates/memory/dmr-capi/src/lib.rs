//! Device memory for programs in C and for languages that call C: a runtime of [`dmr`] by handle,
//! its blocks by address, its streams by their `CUstream`.
//!
//! The header `include/dmr.h` is made from this crate by cbindgen and has the documentation of each
//! function. `libdmr_capi.so` exports them. Nothing here is for programs in Rust: they use `dmr`.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `functions` | the exported functions: pointers in, a status out |
//! | `status` | the status of each error |
//! | `entry` | the way into each call: forks, panics, the thread's last error and its context |
//! | `registry` | runtimes by handle |
//! | `runtime` | a runtime and its blocks, by address |
//! | `streams` | streams of the program, adopted when they are first used |
//! | `dlpack`, `tensors` | tensors by handle, in and out by DLPack |
//! | `columns`, `column_functions` | columns of Arrow, by handle, and their functions |
//! | `capsules` | the destructor of capsules of Python |
//! | `spill` | buffers that are moved to host memory when memory runs out |
//! | `recording` | the flight recorder of the process |
//! | `config`, `reports`, `versioned` | the structs, which carry their size and version |

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "exports C functions, which take pointers")]

mod capsules;
mod column_functions;
mod columns;
mod config;
mod dlpack;
mod driver;
mod entry;
mod functions;
mod recording;
mod registry;
mod reports;
mod runtime;
mod spill;
mod status;
mod streams;
mod tensors;
mod versioned;

pub use capsules::dmr_capsule_destroy;
pub use column_functions::*;
pub use columns::{ColumnInfo, DMR_COLUMN_INFO_VERSION};
pub use config::*;
pub use dlpack::*;
pub use functions::*;
pub use recording::*;
pub use reports::*;
pub use status::Status;

/// A runtime: a device, its memory and the streams that it has seen. A handle, which no program
/// reads through.
#[derive(Debug)]
pub struct RuntimeHandle(());

/// A buffer that is moved to host memory when memory runs out. A handle, which no program reads
/// through.
#[derive(Debug)]
pub struct SpillableHandle(());

/// A tensor. A handle, which no program reads through.
#[derive(Debug)]
pub struct TensorHandle(());

/// A column of Arrow, imported or made of blocks. A handle, which no program reads through.
#[derive(Debug)]
pub struct ColumnHandle(());

/// `struct ArrowDeviceArray` of Arrow's C device interface, as its specification defines it.
#[derive(Debug)]
pub struct ArrowDeviceArray(());

/// `struct ArrowSchema` of Arrow's C data interface, as its specification defines it.
#[derive(Debug)]
pub struct ArrowSchema(());

/// An address of device memory: the type of `CUdeviceptr`.
pub type Address = std::ffi::c_ulonglong;

/// Values by address or handle. No attacker chooses these keys, so a fast hash is enough.
type AddressMap<K, V> = dashmap::DashMap<K, V, rustc_hash::FxBuildHasher>;

/// The version of this interface, which `dmr_version` returns. It changes when a function or a
/// field changes its meaning; a new function, status or field does not change it.
pub const DMR_VERSION: u32 = 1;
