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
/// **The last layer is the outermost**: it sees every call first.
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
