//! What launches and buffers need of a runtime: memory, and the streams it can be used on.

use std::sync::Arc;

use dmr_core::DeviceMemoryResource;

use crate::StreamPool;

/// A resource and the stream pool that it works on.
///
/// Launch recorders and buffers are generic over this, so that they need no runtime type.
pub trait DeviceContext {
    /// Where memory comes from, and who is told of its uses.
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource>;

    /// The streams that work can be submitted to.
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
