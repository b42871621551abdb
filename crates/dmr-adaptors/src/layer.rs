//! What makes an adaptor from a resource, and the builder that stacks them.

use std::sync::Arc;

use dmr_core::DeviceMemoryResource;

/// Makes an adaptor around a resource: the configuration of one, cheap to clone.
pub trait ResourceLayer<R> {
    /// The adaptor.
    type Resource: DeviceMemoryResource;

    /// Puts the adaptor around `inner`.
    fn layer(&self, inner: R) -> Self::Resource;
}

/// Stacks adaptors on a resource: each [`layer`](Self::layer) goes around what is there.
///
/// **The last layer is the outermost**: it sees every call first. What that means, with a budget
/// and a debug guard, which asks for 512 bytes more than the program for every block:
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
/// # let (stream, tag) = (rig.streams().default_stream(), AllocTag::UNTAGGED);
/// # let ops = Arc::new(dmr_streams::PatternOps::new(Arc::clone(rig.streams()))?);
/// let (budget, guard) = (BudgetLayer::new(1 << 20), DebugGuardLayer::new(ops));
///
/// // Outside of the guard, a budget bounds what the program asks for: a block of 1 MiB fits.
/// let asked = ResourceBuilder::new(backend()).layer(guard.clone()).layer(budget).build();
/// let block = asked.allocate(1 << 20, stream, tag)?;
/// # asked.deallocate(block)?;
/// # asked.reap_pending()?;
///
/// // Inside, it bounds what is taken from the GPU, red zones and quarantine included: the same
/// // block does not fit.
/// let budget = BudgetLayer::new(1 << 20);
/// let taken = ResourceBuilder::new(backend()).layer(budget).layer(guard).build();
/// assert!(taken.allocate(1 << 20, stream, tag).is_err());
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
    /// Starts with the innermost resource.
    pub const fn new(base: R) -> Self {
        Self { resource: base }
    }

    /// Puts a layer around what is there.
    pub fn layer<L: ResourceLayer<R>>(self, layer: L) -> ResourceBuilder<L::Resource> {
        ResourceBuilder { resource: layer.layer(self.resource) }
    }

    /// The stack, as the type that it is.
    #[must_use]
    pub fn build(self) -> R {
        self.resource
    }

    /// The stack, shared and without its type.
    #[must_use]
    pub fn build_shared(self) -> Arc<dyn DeviceMemoryResource>
    where
        R: 'static,
    {
        Arc::new(self.resource)
    }
}
