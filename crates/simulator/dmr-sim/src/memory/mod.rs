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
