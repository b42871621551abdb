//! The part of a runtime that launches and buffers need: memory of the device and of the host, and
//! the streams for it.

use std::sync::Arc;

use dmr_core::{DeviceMemoryResource, HostMemoryResource};

use crate::StreamPool;

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

    /// Returns the resources of pinned memory; `None` for the pool that each stream pool has of it
    /// (`PinnedPool` of the crate `dmr-pinned`), without layers around it. Buffers keep them, for
    /// their copies to pinned memory.
    fn pinned_resources(&self) -> Option<&Arc<PinnedResources>> {
        None
    }
}

/// The kind of page-locked memory, for the host. The device accesses both in the same way.
///
/// All of it is mapped and portable: kernels use it at the host's address, on every device of the
/// process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PinnedKind {
    /// Cached by the processor, as ordinary memory is.
    #[default]
    Cached,
    /// Write-combined: the host's writes go past the caches, which makes copies to the device
    /// faster on some machines. Reading it takes the host many times as long.
    WriteCombined,
}

impl PinnedKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Cached, Self::WriteCombined];
}

/// The resources of pinned memory of a context, by kind.
#[derive(Clone, Debug, Default)]
pub struct PinnedResources([Option<Arc<dyn HostMemoryResource>>; PinnedKind::ALL.len()]);

impl PinnedResources {
    /// Sets the resource of a kind.
    #[must_use]
    pub fn with(mut self, kind: PinnedKind, resource: Arc<dyn HostMemoryResource>) -> Self {
        self.0[kind as usize] = Some(resource);
        self
    }

    /// Returns the resource of a kind; `None` for the pool of the streams.
    #[must_use]
    pub fn of_kind(&self, kind: PinnedKind) -> Option<&Arc<dyn HostMemoryResource>> {
        self.0[kind as usize].as_ref()
    }
}

impl<C: DeviceContext + ?Sized> DeviceContext for &C {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        (**self).resource()
    }

    fn streams(&self) -> &Arc<StreamPool> {
        (**self).streams()
    }

    fn pinned_resources(&self) -> Option<&Arc<PinnedResources>> {
        (**self).pinned_resources()
    }
}

impl<C: DeviceContext + ?Sized> DeviceContext for Arc<C> {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        (**self).resource()
    }

    fn streams(&self) -> &Arc<StreamPool> {
        (**self).streams()
    }

    fn pinned_resources(&self) -> Option<&Arc<PinnedResources>> {
        (**self).pinned_resources()
    }
}
