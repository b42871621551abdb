//! The part of a runtime that launches and buffers need: memory, and the streams for it.

use std::sync::Arc;

use dmr_core::DeviceMemoryResource;

use crate::StreamPool;

/// A resource and its stream pool.
///
/// Launch recorders and buffers are generic over this trait and need no runtime type.
pub trait DeviceContext {
    /// Returns the resource, which allocates memory and tracks its uses.
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource>;

    /// Returns the pool of the streams that work can be submitted to.
    fn streams(&self) -> &Arc<StreamPool>;
}

impl<C: DeviceContext + ?Sized> DeviceContext for &C {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        (**self).resource()
    }

    fn streams(&self) -> &Arc<StreamPool> {
        (**self).streams()
    }
}

impl<C: DeviceContext + ?Sized> DeviceContext for Arc<C> {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        (**self).resource()
    }

    fn streams(&self) -> &Arc<StreamPool> {
        (**self).streams()
    }
}
