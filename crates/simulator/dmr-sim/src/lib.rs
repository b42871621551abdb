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
//! The modules, from the driver's interface inwards:
//!
//! | module | what it holds |
//! | --- | --- |
//! | `elf`, `install` | a shared object in memory, found by cudarc under the driver's name |
//! | `boot` | a universe for a whole process |
//! | `driver` | the driver's functions, one file per chapter of its manual, and the names that are refused |
//! | `abi`, `codes`, `attributes`, `handle` | C types, result codes, attributes of devices, handles |
//! | `session`, `registry` | one call: its universe, counting, faults, the lock |
//! | `engine`, `running`, `machine`, `end_times` | submission and execution: clocks, dependencies, the scheduler, and when work ended |
//! | `checks` | the order of checks, also of launches whose footprint is known only when they have run |
//! | `shadow`, `history`, `findings`, `report` | the state of the checks, the history of each byte, and findings about accesses |
//! | `regions`, `freed` | the blocks of pools, and freed memory |
//! | `store`, `bytes`, `address`, `driver_pool` | bytes, addresses, and `CUmemoryPool` |
//! | `memory_map` | the owners of addresses: live allocations, mappings, and rights |
//! | `virtual_memory`, `mapping` | reserved addresses, physical memory, and mappings |
//! | `stream_memory`, `words` | words that streams write and wait for, and the resulting order |
//! | `kernel`, `callback` | kernels as closures, host callbacks |
//! | `interpreter` | kernels as PTX, which `dmr-ptx` runs |
//! | `recorder`, `recording`, `byte_set` | the bytes that a kernel touches, recorded while it runs |
//! | `graph` | graphs: captured, or made node by node; executable graphs and their launches |
//! | `image`, `module`, `objects` | PTX in the images that programs load, loaded modules, and what programs set through the driver |
//! | `label`, `python` | the places of the program where operations are submitted |
//! | `refusal`, `compiler_log` | what is not supported, with the reasons |
//! | `faults` | calls that fail, do nothing, or stop half-way |
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
