//! Adaptors over host memory: those that return the blocks of their upstream as they are, and leave
//! the memory alone.

#![allow(unsafe_code, reason = "a promise about the blocks of the upstream resource")]

use dmr_core::HostMemoryResource;

// SAFETY: returns the blocks that upstream allocated, and deallocates a block upstream only when
// its owner has deallocated it. Neither accesses memory nor submits device work.
#[cfg(feature = "budget")]
unsafe impl<R: HostMemoryResource + 'static> HostMemoryResource
    for crate::budget::BudgetResource<R>
{
}

// SAFETY: as above.
#[cfg(feature = "logging")]
unsafe impl<R: HostMemoryResource> HostMemoryResource for crate::logging::LoggingResource<R> {}

// SAFETY: as above.
#[cfg(feature = "statistics")]
unsafe impl<R: HostMemoryResource> HostMemoryResource for crate::statistics::StatisticsResource<R> {}
