//! The stacks of resources that the programs run on, by name.

use std::sync::Arc;

use dmr_core::DeviceMemoryResource;
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::{StreamPool, Tracked};

use crate::Outcome;

/// The backends that this build contains, sorted.
pub const BACKENDS: &[&str] = &[
    #[cfg(feature = "all")]
    "async",
    "direct",
    #[cfg(feature = "nvtx")]
    "nvtx",
    #[cfg(feature = "pool-direct")]
    "pool",
    #[cfg(feature = "all")]
    "virtual",
];

/// Every stack of this build.
pub const STACKS: &[Stack] = &[
    Stack { name: "direct-tracked", make: direct_tracked },
    #[cfg(feature = "pool-direct")]
    Stack { name: "pool-direct", make: pools::over_direct },
    #[cfg(feature = "all")]
    Stack { name: "async", make: driver_pool },
    #[cfg(feature = "all")]
    Stack { name: "pool", make: pools::over_pages },
    #[cfg(feature = "all")]
    Stack { name: "pool-compact", make: pools::compact },
];

/// A stack that tracks uses.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    /// The name that `--stack` takes.
    pub name: &'static str,
    make: fn(&Arc<StreamPool>) -> Outcome<Arc<dyn DeviceMemoryResource>>,
}

impl Stack {
    /// Returns the stack with this name.
    ///
    /// # Errors
    ///
    /// This build has no such stack; the message lists those that it has.
    pub fn find(name: &str) -> Outcome<Self> {
        let found = STACKS.iter().find(|stack| stack.name == name);
        Ok(*found.ok_or_else(|| {
            let names: Vec<_> = STACKS.iter().map(|stack| stack.name).collect();
            format!("this build has no stack {name:?}: it has {}", names.join(", "))
        })?)
    }

    /// Makes a fresh resource that accepts the streams of this pool.
    ///
    /// # Errors
    ///
    /// Those of the resources.
    pub fn make(&self, streams: &Arc<StreamPool>) -> Outcome<Arc<dyn DeviceMemoryResource>> {
        (self.make)(streams)
    }
}

fn direct_tracked(streams: &Arc<StreamPool>) -> Outcome<Arc<dyn DeviceMemoryResource>> {
    let direct = DirectCudaResource::new(Arc::clone(streams));
    Ok(Arc::new(Tracked::new(direct, Arc::clone(streams))?))
}

#[cfg(feature = "all")]
fn driver_pool(streams: &Arc<StreamPool>) -> Outcome<Arc<dyn DeviceMemoryResource>> {
    use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
    Ok(Arc::new(AsyncCudaResource::new(Arc::clone(streams), AsyncConfig::default())?))
}

#[cfg(feature = "pool-direct")]
mod pools {
    //! Pools, with an observer where the driver or an attached tool has one.

    use dmr_core::MemoryObserver;
    use dmr_pool::{PoolConfig, PoolResource};

    use super::*;

    pub(super) fn over_direct(streams: &Arc<StreamPool>) -> Outcome<Arc<dyn DeviceMemoryResource>> {
        let direct = DirectCudaResource::new(Arc::clone(streams));
        let pool = PoolResource::new(direct, Arc::clone(streams), PoolConfig::fast())?;
        Ok(observed(pool, tool().or_else(|| streams.device().memory_observer())))
    }

    /// Returns the observer of an attached tool. The tool accepts memory of the direct backend
    /// only.
    fn tool() -> Option<Arc<dyn MemoryObserver>> {
        #[cfg(feature = "nvtx")]
        return dmr_nvtx::memory_observer();
        #[cfg(not(feature = "nvtx"))]
        None
    }

    fn observed<U: DeviceMemoryResource + 'static>(
        pool: PoolResource<U>,
        observer: Option<Arc<dyn MemoryObserver>>,
    ) -> Arc<dyn DeviceMemoryResource> {
        match observer {
            Some(observer) => Arc::new(pool.with_observer(observer)),
            None => Arc::new(pool),
        }
    }

    #[cfg(feature = "all")]
    pub(super) fn over_pages(streams: &Arc<StreamPool>) -> Outcome<Arc<dyn DeviceMemoryResource>> {
        pages(streams, PoolConfig::fast())
    }

    #[cfg(feature = "all")]
    pub(super) fn compact(streams: &Arc<StreamPool>) -> Outcome<Arc<dyn DeviceMemoryResource>> {
        pages(streams, PoolConfig::compact())
    }

    #[cfg(feature = "all")]
    fn pages(
        streams: &Arc<StreamPool>,
        config: PoolConfig,
    ) -> Outcome<Arc<dyn DeviceMemoryResource>> {
        use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
        let upstream = VirtualCudaResource::new(Arc::clone(streams), VirtualConfig::new())?;
        let pool = PoolResource::new(upstream, Arc::clone(streams), config)?;
        Ok(observed(pool, streams.device().memory_observer()))
    }
}
