//! Memory: addresses, allocations, mappings and bytes.

pub(crate) mod address;
pub(crate) mod bytes;
pub(crate) mod driver_pool;
pub(crate) mod late_frees;
pub(crate) mod mapping;
pub(crate) mod memory_map;
pub(crate) mod state;
pub(crate) mod store;
pub(crate) mod virtual_memory;

pub(crate) use address::AddressSpace;
pub(crate) use bytes::Memory;
pub(crate) use driver_pool::{DriverPool, Grant, Known};
pub(crate) use late_frees::{LateFree, LateFrees};
pub(crate) use mapping::{Mapping, Mappings, Reach, Rights};
pub(crate) use memory_map::{Allocation, Home, MemoryMap};
pub(crate) use state::MemoryState;
pub(crate) use store::Store;
pub(crate) use virtual_memory::{Physical, Reserved, VirtualMemory};
