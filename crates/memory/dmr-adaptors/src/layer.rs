//! [`ResourceLayer`], the configuration of an adaptor, and [`ResourceBuilder`], which stacks
//! adaptors.

use std::sync::Arc;

use dmr_core::DeviceMemoryResource;

/// The configuration of an adaptor, which makes any number of them. Cheap to clone.
pub trait ResourceLayer<R> {
    /// The adaptor that the layer makes.
    type Resource: DeviceMemoryResource;

    /// Makes an adaptor that wraps `upstream`.
    fn layer(&self, upstream: R) -> Self::Resource;
}

/// Stacks adaptors on a resource.
///
/// **The last layer is the outermost**: it receives every call first. An example with a budget and
/// a debug guard, which allocates at least 512 bytes more for each block:
///
/// ```
/// # #[cfg(all(feature = "budget", feature = "debug-guard"))]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::sync::Arc;
/// use dmr_adaptors::ResourceBuilder;
/// use dmr_adaptors::budget::BudgetLayer;
/// use dmr_adaptors::guard::DebugGuardLayer;
/// use dmr_core::{AllocTag, DeviceMemoryResource};
///
/// # let rig = dmr_testkit::Rig::new();
/// # let backend = || dmr_cuda_direct::DirectCudaResource::new(Arc::clone(rig.streams()));
/// # let stream = rig.streams().default_stream();
/// # let tag = AllocTag::UNTAGGED;
/// # let ops = Arc::new(dmr_streams::PatternOps::new(Arc::clone(rig.streams()))?);
/// let budget = BudgetLayer::new(1 << 20);
/// let guard = DebugGuardLayer::new(ops);
///
/// // Outside the guard, the budget limits the bytes that the program requests: a block of 1 MiB
/// // fits.
/// let requested = ResourceBuilder::new(backend()).layer(guard.clone()).layer(budget).build();
/// let block = requested.allocate(1 << 20, stream, tag)?;
/// # requested.deallocate(block)?;
/// # requested.reap_pending()?;
///
/// // Inside, it limits the bytes that the GPU allocates, with red zones and quarantine: the same
/// // block does not fit.
/// let budget = BudgetLayer::new(1 << 20);
/// let allocated = ResourceBuilder::new(backend()).layer(budget).layer(guard).build();
/// assert!(allocated.allocate(1 << 20, stream, tag).is_err());
/// # Ok(())
/// # }
/// # #[cfg(not(all(feature = "budget", feature = "debug-guard")))]
/// # fn main() {}
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct ResourceBuilder<R> {
    resource: R,
}

impl<R: DeviceMemoryResource> ResourceBuilder<R> {
    /// Starts a stack with its innermost resource.
    pub const fn new(base: R) -> Self {
        Self { resource: base }
    }

    /// Wraps the stack in the adaptor that `layer` makes.
    pub fn layer<L: ResourceLayer<R>>(self, layer: L) -> ResourceBuilder<L::Resource> {
        ResourceBuilder { resource: layer.layer(self.resource) }
    }

    /// Returns the stack with its type.
    #[must_use]
    pub fn build(self) -> R {
        self.resource
    }

    /// Returns the stack shared, as a trait object.
    #[must_use]
    pub fn build_shared(self) -> Arc<dyn DeviceMemoryResource>
    where
        R: 'static,
    {
        Arc::new(self.resource)
    }
}
