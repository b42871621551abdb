//! The part of a runtime that launches and buffers need: memory, and the streams for it.

use std::sync::Arc;

use dmr_core::{DeviceMemoryResource, HostMemoryResource};

use crate::{PinnedKind, StreamPool};

/// A resource and its stream pool.
///
/// Launch recorders and buffers are generic over this trait and need no runtime type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a context of buffers and launches",
    label = "pass a `DeviceRuntime` or a `Tenant`"
)]
pub trait DeviceContext {
    /// Returns the resource, which allocates memory and tracks its uses.
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource>;

    /// Returns the pool of the streams that work can be submitted to.
    fn streams(&self) -> &Arc<StreamPool>;

    /// Returns the resource of pinned memory of this kind; `None` for the pool that the streams have of it
    /// ([`PinnedResource`](crate::PinnedResource)), without layers around it.
    fn pinned_resource(&self, kind: PinnedKind) -> Option<&Arc<dyn HostMemoryResource>> {
        let _ = kind;
        None
    }
}

impl<C: DeviceContext + ?Sized> DeviceContext for &C {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        (**self).resource()
    }

    fn streams(&self) -> &Arc<StreamPool> {
        (**self).streams()
    }

    fn pinned_resource(&self, kind: PinnedKind) -> Option<&Arc<dyn HostMemoryResource>> {
        (**self).pinned_resource(kind)
    }
}

impl<C: DeviceContext + ?Sized> DeviceContext for Arc<C> {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        (**self).resource()
    }

    fn streams(&self) -> &Arc<StreamPool> {
        (**self).streams()
    }

    fn pinned_resource(&self, kind: PinnedKind) -> Option<&Arc<dyn HostMemoryResource>> {
        (**self).pinned_resource(kind)
    }
}
