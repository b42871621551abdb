//! A part of a program that shares a runtime's device and streams, and has a stack of its own.

use std::sync::Arc;

use dmr_core::DeviceMemoryResource;
use dmr_streams::{DeviceContext, PinnedKind, StreamPool};

use crate::builder::same_streams;
use crate::pinned::Pinned;
use crate::{DeviceRuntime, RuntimeError, SharedHostResource, SharedResource};

/// The streams and the pinned memory of a [`DeviceRuntime`], and a resource over the runtime's own: what buffers and
/// launches take. Made by [`DeviceRuntime::tenant`].
#[derive(Clone, Debug)]
pub struct Tenant {
    streams: Arc<StreamPool>,
    resource: SharedResource,
    pinned: Pinned,
}

impl DeviceRuntime {
    /// Makes a context for a part of the program that has layers of its own around the runtime's
    /// resource: a budget for a tenant, a log or statistics for a query. `stack` takes the
    /// runtime's resource and returns it with these layers.
    ///
    /// Free a block through the tenant that allocated it; buffers do.
    ///
    /// # Errors
    ///
    /// [`Mismatch`](RuntimeError::Mismatch) if what `stack` returns works on the streams of another
    /// pool.
    pub fn tenant<R: DeviceMemoryResource + 'static>(
        &self,
        stack: impl FnOnce(SharedResource) -> R,
    ) -> Result<Tenant, RuntimeError> {
        let resource = stack(Arc::clone(self.resource()));
        let streams = Arc::clone(self.streams());
        same_streams(&resource, &streams)?;
        Ok(Tenant { streams, resource: Arc::new(resource), pinned: self.layers.pinned.clone() })
    }
}

impl DeviceContext for Tenant {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    fn pinned_resource(&self, kind: PinnedKind) -> Option<&SharedHostResource> {
        self.pinned.resource(kind)
    }
}
