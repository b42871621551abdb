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
    //! Pools, observed where the driver brings an observer.

    use dmr_pool::{PoolConfig, PoolResource};

    use super::*;

    pub(super) fn over_direct(streams: &Arc<StreamPool>) -> Outcome<Arc<dyn DeviceMemoryResource>> {
        pool(DirectCudaResource::new(Arc::clone(streams)), streams, PoolConfig::fast())
    }

    #[cfg(feature = "all")]
    pub(super) fn over_pages(streams: &Arc<StreamPool>) -> Outcome<Arc<dyn DeviceMemoryResource>> {
        pool(pages(streams)?, streams, PoolConfig::fast())
    }

    #[cfg(feature = "all")]
    pub(super) fn compact(streams: &Arc<StreamPool>) -> Outcome<Arc<dyn DeviceMemoryResource>> {
        pool(pages(streams)?, streams, PoolConfig::compact())
    }

    #[cfg(feature = "all")]
    fn pages(streams: &Arc<StreamPool>) -> Outcome<dmr_cuda_virtual::VirtualCudaResource> {
        use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
        Ok(VirtualCudaResource::new(Arc::clone(streams), VirtualConfig::new())?)
    }

    fn pool<U: DeviceMemoryResource + 'static>(
        upstream: U,
        streams: &Arc<StreamPool>,
        config: PoolConfig,
    ) -> Outcome<Arc<dyn DeviceMemoryResource>> {
        let pool = PoolResource::new(upstream, Arc::clone(streams), config)?;
        Ok(match streams.device().memory_observer() {
            Some(observer) => Arc::new(pool.with_observer(observer)),
            None => Arc::new(pool),
        })
    }
}
