//! The driver's functions, one file per chapter of the CUDA Driver API manual.
//!
//! Each is an `extern "C"` function of the driver's name and type. `refused` has those that are not
//! simulated.

#![allow(non_snake_case, reason = "the driver's names")]

mod arguments;
mod block_reports;
mod call;
mod capture;
mod chapter;
mod context;
mod copies;
mod copies_3d;
mod device;
mod entry_point;
mod event;
mod first;
mod function;
mod graph;
mod graph_attributes;
mod graph_exec;
mod graph_getters;
mod graph_memory;
mod graph_nodes;
mod graph_params;
mod launch;
mod library;
mod linker;
mod memory;
mod memset;
mod module;
mod occupancy;
mod peer;
mod per_thread;
mod pool;
mod primary;
mod refused;
mod since;
mod stream;
mod stream_memory;
mod symbols;
mod tensor_map;
mod unified;
mod user_objects;
mod virtual_memory;

pub use symbols::driver_functions;

pub(crate) use symbols::symbols;

use call::{Scope, driver_call};
use chapter::{chapter, put, put_optional, required};
