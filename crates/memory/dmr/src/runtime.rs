//! A device, its streams and its memory, together.

use std::sync::{Arc, Mutex, OnceLock};

use dmr_core::process::PerProcess;
use dmr_core::sync::lock;
use dmr_core::{DeviceMemoryResource, PeerAccess, ResourceResult};
use dmr_streams::{Device, DeviceContext, PinnedResources, StreamPool};

use crate::layers::Handles;
use crate::shutdown::UnusedMemory;
use crate::{DeviceRuntimeBuilder, RuntimeError};

/// The number of CUDA ordinals for which [`DeviceRuntime::try_get`] keeps a runtime.
pub const MAX_DEVICE_ORDINALS: usize = 64;

/// A device, its stream pool and its memory resource.
///
/// [`try_get`](Self::try_get) returns the one that the whole process shares;
/// [`builder`](Self::builder) composes one of your own.
#[derive(Debug)]
pub struct DeviceRuntime {
    streams: Arc<StreamPool>,
    resource: Arc<dyn DeviceMemoryResource>,
    #[allow(dead_code, reason = "what is read depends on the features")]
    pub(crate) layers: Handles,
    pub(crate) unused_memory: Arc<UnusedMemory>,
}

impl DeviceRuntime {
    /// Returns the process's runtime of a device: built by the first call, and the same for every
    /// later one.
    ///
    /// Calls during the build wait for it; afterwards no lock is taken. A build that failed is
    /// repeated by the next call. The runtime is never dropped; when the process ends, it
    /// [returns](crate::shutdown()) its unused memory.
    ///
    /// # Errors
    ///
    /// As [`DeviceRuntimeBuilder::build`], and [`RuntimeError::OrdinalBeyondLimit`] from
    /// [`MAX_DEVICE_ORDINALS`] on.
    pub fn try_get(ordinal: usize) -> Result<&'static Self, RuntimeError> {
        let shared = SHARED.get(ordinal).ok_or(RuntimeError::OrdinalBeyondLimit { ordinal })?;
        if let Some(runtime) = shared.runtime.get() {
            return Ok(runtime);
        }
        let _building = lock(shared.building.get());
        if let Some(runtime) = shared.runtime.get() {
            return Ok(runtime);
        }
        let runtime = Self::builder(ordinal).build()?;
        Ok(shared.runtime.get_or_init(|| runtime))
    }

    /// Composes a runtime of your own on a device.
    pub fn builder(ordinal: usize) -> DeviceRuntimeBuilder {
        DeviceRuntimeBuilder::new(ordinal)
    }

    pub(crate) fn from_parts(
        streams: Arc<StreamPool>,
        resource: Arc<dyn DeviceMemoryResource>,
        layers: Handles,
    ) -> Self {
        let unused_memory = UnusedMemory::at_exit(&streams, &resource, &layers);
        Self { streams, resource, layers, unused_memory }
    }

    /// The process's runtimes that have been built.
    pub(crate) fn shared() -> impl Iterator<Item = &'static Self> {
        SHARED.iter().filter_map(|shared| shared.runtime.get())
    }

    /// Returns the resource, from which memory is allocated.
    #[must_use]
    pub fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    /// Returns unused memory to the driver while more than `keep_bytes`
    /// bytes are reserved: for other programs, or other runtimes on the device.
    /// Returns the released bytes.
    ///
    /// Does not wait: call [`reap_pending`](DeviceMemoryResource::reap_pending) before, to include
    /// memory that device work still uses. See [`DeviceMemoryResource::trim_to`].
    ///
    /// # Errors
    ///
    /// As [`DeviceMemoryResource::trim_to`].
    pub fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        self.resource.trim_to(keep_bytes)
    }

    /// Makes the memory of `peer`, a runtime of another device, accessible to kernels of this
    /// device: what it has now and what it allocates later. One way: for the other way call it on
    /// `peer`. A second call changes nothing.
    ///
    /// Copies between devices need no peer access, and are faster with it
    /// ([`copy_from_peer`](dmr_buffer::DeviceBuffer::copy_from_peer)). The memory of each backend
    /// has access of its own: a pool over pages sets that of each page, now and whenever it maps
    /// one, the async backend that of the driver's pool, and the direct backend that of the two
    /// contexts (`cuCtxEnablePeerAccess`).
    ///
    /// # Errors
    ///
    /// [`NoPeerAccess`](dmr_core::ResourceError::NoPeerAccess) if there is no path between the
    /// devices, or the resource of `peer` cannot do it;
    /// [`Driver`](dmr_core::ResourceError::Driver); as [`Device::check`] of both devices.
    pub fn enable_peer_access(&self, peer: &Self) -> ResourceResult<()> {
        let device = self.device();
        let memory = peer.device();
        device.check()?;
        memory.check()?;
        if device.same_context(memory) {
            return Ok(());
        }
        device.require_peer_path(memory)?;
        match peer.resource.allow_access(self.ordinal())? {
            PeerAccess::Granted => Ok(()),
            PeerAccess::ByContext => device.enable_peer_access(memory),
        }
    }

    /// The streams that memory can be used on.
    #[must_use]
    pub fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.streams.device()
    }

    /// CUDA device ordinal.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.device().ordinal()
    }
}

impl DeviceContext for DeviceRuntime {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    fn pinned_resources(&self) -> Option<&Arc<PinnedResources>> {
        self.layers.pinned.resources()
    }
}

static SHARED: [Shared; MAX_DEVICE_ORDINALS] =
    [const { Shared { runtime: OnceLock::new(), building: PerProcess::new(Mutex::default) } };
        MAX_DEVICE_ORDINALS];

struct Shared {
    runtime: OnceLock<DeviceRuntime>,
    /// Held while building: by one thread, so that it is done once. In a forked child another
    /// thread may have held it: there it is a new one.
    building: PerProcess<Mutex<()>>,
}
