//! Stream-ordered GPU memory: buffers and launches that are ordered across CUDA streams, a fast
//! pool with a hard budget.
//!
//! A launch declares the buffers that it reads and writes. Whatever other streams still do with
//! them is waited for, and later uses wait for the launch:
//!
//! ```no_run
//! use dmr::cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
//! use dmr::prelude::*;
//!
//! /// Doubles numbers with a kernel `twice(x, y, n)`.
//! fn doubled(gpu: &DeviceRuntime, twice: &CudaFunction, host: &[f32]) -> dmr::Result<Vec<f32>> {
//!     let load = gpu.streams().acquire()?;
//!     let compute = gpu.streams().acquire()?;
//!     let x = DeviceBuffer::from_host(gpu, &load, host)?; // copied on `load`
//!     let mut y = DeviceBuffer::<f32>::zeroed(gpu, &compute, x.len())?;
//!
//!     let mut launch = LaunchRecorder::new_strict(&compute);
//!     let from = launch.read(&x);
//!     let to = launch.write(&mut y);
//!     let n = x.len() as u32;
//!     launch.launch(gpu, |stream| {
//!         let mut kernel = stream.launch_builder(twice);
//!         kernel.arg(&from).arg(&to).arg(&n);
//!         // SAFETY: the kernel takes two addresses and a count, and stays inside both buffers.
//!         unsafe { kernel.launch(LaunchConfig::for_num_elems(n)) }
//!     })?; // `compute` waits for the copy
//!     drop(x); // freed when `compute` has read it
//!     Ok(y.to_host(&compute)?)
//! }
//!
//! # fn main() -> dmr::Result {
//! let gpu = DeviceRuntime::try_get(0)?;
//! # let _ = gpu;
//! # Ok(())
//! # }
//! ```
//!
//! | to | use |
//! | --- | --- |
//! | open a device | [`DeviceRuntime::try_get`], or a [builder](DeviceRuntime::builder) with budget, log, statistics and spilling |
//! | lease a stream | [`acquire`](dmr_streams::StreamPool::acquire) of the runtime's [`streams`](DeviceRuntime::streams) |
//! | hold elements on the device | [`DeviceBuffer`](dmr_buffer::DeviceBuffer), its views and [`PinnedBuffer`](dmr_buffer::PinnedBuffer) |
//! | launch a kernel, or cuBLAS | [`LaunchRecorder`](dmr_launch::LaunchRecorder) |
//! | capture work once and replay it | [`Graph`](dmr_graphs::Graph) |
//! | give a query its own limits | [`DeviceRuntime::tenant_builder`] |
//! | handle a shortage of memory | [`Error::is_out_of_memory`] |
//! | await the device | [`completed`](dmr_streams::StreamPool::completed), [`to_host_async`](dmr_buffer::DeviceBuffer::to_host_async) |
//! | allocate blocks of bytes | [`resource`](DeviceRuntime::resource) of the runtime |
//!
//! [`prelude`] has what most programs need.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! | --- | --- | --- |
//! | `async` | yes | [`Backend::Async`]: a memory pool of the driver, with use tracking |
//! | `budget` | yes | one hard limit per GPU: `budget`, sub-budgets, reservations |
//! | `callbacks` | no | `on_out_of_memory`: make room and retry |
//! | `cudarc` | yes | types of cudarc: its streams, contexts and errors, views for its wrappers, its slices as blocks. Without it the interface has handles of the driver only |
//! | `debug-guard` | no | `debug_guard`: red zones, poison, quarantine |
//! | `derive` | no | derives [`Pod`](bytemuck::Pod) and [`Zeroable`](bytemuck::Zeroable) |
//! | `direct` | yes | [`Backend::Direct`] and [`Backend::DirectTracked`]: `cuMemAlloc` and `cuMemFree`, one call each per block |
//! | `logging` | yes | `log_csv`: every allocation and free, in a file that `dmr replay` reads |
//! | `metrics` | no | statistics through the `metrics` facade |
//! | `nvrtc` | no | `cudarc::nvrtc::Ptx`, `CudaContext::load_module`; only compiling needs the NVRTC library |
//! | `nvtx` | no | blocks and declared uses for Compute Sanitizer, names for Nsight Systems; brings `direct` |
//! | `pool` | yes | [`Backend::Pool`]: no driver call where it finds what it needs; brings `async` |
//! | `shared` | yes | `shared_budget`: one hard limit per GPU for all processes of a user; Linux |
//! | `spill` | no | `spill`: cold buffers move to pinned host memory when GPU memory runs out; brings `callbacks` |
//! | `statistics` | no | `statistics`: current, peak and total, by tag, stream and scope |
//! | `tracing` | no | reports, and a log, through `tracing` |
//!
//! Every build has `DeviceBuffer`, `PinnedBuffer`, `Column` and `LaunchRecorder`.
//!
//! Which of the compiled-in backends is used: the builder decides, else the environment variable
//! `DMR_BACKEND`, else the first of [`Backend::available`]: the pool, where it is compiled in. A
//! feature adds a backend and removes none: a program that is to have the direct backend alone, to
//! run under Compute Sanitizer, turns the default features off and asks for `direct`.
//!
//! # Element types of your own
//!
//! A buffer holds any [`Pod`](bytemuck::Pod): numbers, arrays of them, and with the feature
//! `derive` structs. A program needs no dependency on `bytemuck` for that. The derived code does,
//! unless the attribute names this crate's:
//!
//! ```no_run
//! use dmr::prelude::*;
//!
//! #[derive(Clone, Copy, Pod, Zeroable)]
//! #[bytemuck(crate = "dmr::bytemuck")]
//! #[repr(C)]
//! struct Particle {
//!     position: [f32; 3],
//!     mass: f32,
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = DeviceRuntime::try_get(0)?;
//! let stream = runtime.streams().acquire()?;
//! let tag = AllocTag::new("particles");
//! let mut particles = DeviceBuffer::<Particle>::zeroed_tagged(runtime, &stream, 1000, tag)?;
//! particles.fill(Particle { position: [0.0; 3], mass: 1.0 }, &stream)?;
//! # Ok(())
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod backend;
mod builder;
mod error;
mod layered;
mod layers;
mod one_error;
mod pinned;
#[cfg(feature = "pool")]
mod pooled;
mod recording;
#[cfg(feature = "pool")]
pub mod report;
mod runtime;
mod shutdown;
mod tenant;

pub use backend::Backend;
pub use builder::DeviceRuntimeBuilder;
pub use error::RuntimeError;
pub use layers::SharedResource;
pub use one_error::{Error, NotHandedOver, Result};
pub use pinned::SharedHostResource;
pub use runtime::{DeviceRuntime, MAX_DEVICE_ORDINALS};
pub use shutdown::{ShutdownError, shutdown};
pub use tenant::{Tenant, TenantBuilder};

pub use dmr_buffer::bytemuck;

#[cfg(feature = "cudarc")]
pub use cudarc;
#[cfg(feature = "dmr-adaptors")]
pub use dmr_adaptors;
#[cfg(feature = "arrow")]
pub use dmr_arrow;
pub use dmr_buffer;
pub use dmr_core;
#[cfg(feature = "async")]
pub use dmr_cuda_async;
#[cfg(feature = "direct")]
pub use dmr_cuda_direct;
#[cfg(feature = "pool")]
pub use dmr_cuda_virtual;
#[cfg(feature = "dlpack")]
pub use dmr_dlpack;
pub use dmr_external;
pub use dmr_graphs;
pub use dmr_launch;
#[cfg(feature = "nvtx")]
pub use dmr_nvtx;
pub use dmr_pinned;
#[cfg(feature = "pool")]
pub use dmr_pool;
pub use dmr_recorder;
#[cfg(feature = "shared")]
pub use dmr_shared_limit;
#[cfg(feature = "cudarc")]
pub use dmr_slices;
#[cfg(feature = "spill")]
pub use dmr_spill;
pub use dmr_streams;

/// The items that most programs need: `use dmr::prelude::*`.
pub mod prelude {
    pub use crate::{Backend, DeviceRuntime, RuntimeError, Tenant};
    #[cfg(feature = "dmr-adaptors")]
    pub use dmr_adaptors::ResourceLayer;
    #[cfg(feature = "budget")]
    pub use dmr_adaptors::budget::{Budget, BudgetLayer, BudgetResource};
    #[cfg(feature = "callbacks")]
    pub use dmr_adaptors::callbacks::{FailureCallbackLayer, Response};
    #[cfg(feature = "debug-guard")]
    pub use dmr_adaptors::guard::{DebugGuardLayer, DebugGuardResource};
    #[cfg(feature = "logging")]
    pub use dmr_adaptors::logging::{CsvSink, LoggingLayer, LoggingResource, with_query};
    #[cfg(feature = "statistics")]
    pub use dmr_adaptors::statistics::{StatisticsLayer, StatisticsResource};
    pub use dmr_buffer::failures::{drop_failures, take_drop_failures};
    pub use dmr_buffer::pinned::{reap_orphaned_pinned, reap_pinned, trim_pinned, try_reap_pinned};
    pub use dmr_buffer::{
        AdoptedColumn, AllowedAccess, Column, DeviceBuffer, PinnedBuffer, Pod, WriteCombinedBuffer,
        Zeroable,
    };
    pub use dmr_core::{
        AllocTag, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError, ResourceResult,
        StreamId, Usage, UseTrackingExt, wait_at_most,
    };
    #[cfg(feature = "async")]
    pub use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
    #[cfg(feature = "direct")]
    pub use dmr_cuda_direct::DirectCudaResource;
    #[cfg(feature = "pool")]
    pub use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
    pub use dmr_external::{ForeignBlocks, ForeignMemory, Ready};
    pub use dmr_graphs::{Capture, CaptureMode, Graph};
    pub use dmr_launch::{LaunchError, LaunchRecorder};
    #[cfg(feature = "cudarc")]
    pub use dmr_launch::{Reads, ReadsAndWrites, Writes};
    pub use dmr_pinned::{PinnedKind, PinnedResource};
    #[cfg(feature = "pool")]
    pub use dmr_pool::{PoolConfig, PoolResource};
    #[cfg(feature = "cudarc")]
    pub use dmr_slices::CudaSlices;
    #[cfg(feature = "spill")]
    pub use dmr_spill::{Spill, Spillable};
    pub use dmr_streams::{
        Device, DeviceContext, DeviceError, PatternOps, StreamGuard, StreamLease, StreamPool,
        StreamPoolConfig, Tracked,
    };
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
