//! A simulated CUDA driver that finds stream-ordering races.
//!
//! Code that calls CUDA through cudarc (or anything else that loads `libcuda.so` at run time)
//! runs unmodified on it, without a GPU. Because it sees every stream and every event, it can
//! report whether a program is *ordered*, not only whether the bytes were right in one run.
//!
//! ```
//! use cudarc::driver::CudaContext;
//! use dmr_sim::{ReportKind, Universe};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let universe = Universe::new()?;
//! let context = CudaContext::new(universe.ordinal(0))?;
//! // SAFETY: this program orders its streams itself (wrongly, as the reports show).
//! unsafe { context.disable_event_tracking() };
//! let a = context.new_stream()?;
//! let b = context.new_stream()?;
//! let zeros = a.alloc_zeros::<u32>(1024)?; // written on `a` ...
//! let host = b.clone_dtoh(&zeros)?; // ... and read on `b`, with nothing in between
//! # drop(host);
//! assert_eq!(universe.reports()[0].kind, ReportKind::UseBeforeAllocation);
//! assert_eq!(universe.reports()[1].kind, ReportKind::ReadAfterWrite);
//! # Ok(())
//! # }
//! ```
//!
//! The rooms, from the program's side down. A room uses rooms below it only, without an exception.
//! Two files use each other: in `driver`, the table `symbols` lists `entry_point`, which looks
//! functions up in that table.
//!
//! | room | what is in it |
//! | --- | --- |
//! | `process` | how the simulator becomes the driver of a process: a shared object in memory (`elf`, `install`), a universe before `main` (`boot`), the interface of tests (`universe`) |
//! | `driver` | the driver's functions, one file per chapter of its manual, and those that are refused; `call` is what all of them do: universe, faults, lock |
//! | `machine` | one simulated machine: its `state`; submission and execution (`engine`, `running`, `waiting`, `order`); the effects of calls (`transfers`, `virtual_memory`, `pinned`, `stream_memory`, `events`, `launch`); graphs (`graph`, `executable`); `session` is one call that holds its lock |
//! | `check` | what is found: the state of each byte (`history`), of blocks (`shadow`, `regions`, `freed`) and words (`words`); checks that wait (`log`); `findings`, `report` |
//! | `kernel` | kernels as closures (`body`) and as PTX (`interpreter`, `image`), the memory that they see (`memory`), and what they touch (`recorder`, `recording`, `byte_set`) |
//! | `memory` | addresses, allocations (`memory_map`), `mapping`s, bytes (`store`, `bytes`), and `CUmemoryPool` (`driver_pool`) |
//! | `access` | an access: the operation that makes it (`origin`, `site`), what comes before that (`clock`), its `kind` and its `range` |
//! | `host` | what a process and its threads have beside a machine: forks, `cuInit`, current contexts, labels, planted faults, locks |
//! | `abi` | C types, result codes, attributes of devices, handles |
//!
//! Findings are collected and never panic: [`Universe::finish`] returns them at the end of a test.

#![allow(unsafe_code, reason = "the C boundary, pinned memory, and the dynamic linker")]

mod abi;
mod access;
mod check;
mod driver;
mod host;
mod kernel;
mod machine;
mod memory;
mod process;

pub use access::declaration::DeclaredUse;
pub use access::site::{GraphNode, KernelSite, Site};
pub use check::report::{Report, ReportKind, Verdict};
pub use check::undeclared::Undeclared;
pub use dmr_ptx::{Checks, Limits};
pub use driver::driver_functions;
pub use host::capture_mode::{is_capture_mode_global, reset_capture_mode};
pub use host::faults::{CallCounts, Hold};
pub use host::fork::calls_of_forked_child;
pub use host::label::{LabelGuard, label};
pub use kernel::args::KernelArgs;
pub use kernel::footprint::Footprint;
pub use kernel::memory::KernelMemory;
pub use kernel::refusal::Refusal;
pub use machine::config::{HostOrder, Policy};
pub use machine::session::is_inside_driver_call;
pub use process::boot::{EXIT_STATUS, boot, boot_library};
pub use process::install::{
    Because, Driver, InstallError, SelectError, install, select, select_for,
};
pub use process::universe::{HostToken, Universe, UniverseBuilder};
