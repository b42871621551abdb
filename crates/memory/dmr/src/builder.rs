//! Puts a runtime together, and refuses parts that do not fit.

use std::sync::Arc;

#[cfg(feature = "cudarc")]
use cudarc::driver::CudaContext;
use dmr_core::{DeviceMemoryResource, StreamPoolId};
use dmr_recorder::RecorderConfig;
use dmr_streams::{Device, StreamPool, StreamPoolConfig};

use crate::backend::Settings;
use crate::layers::Layers;
use crate::{Backend, DeviceRuntime, RuntimeError};

/// Builds a [`DeviceRuntime`]. Makes the context, the streams and the resource, unless they are
/// passed.
///
/// # Layers
///
/// Whatever the order of the calls, layers are put around the backend in this order, from the
/// inside out: budget, pool, debug guard, log, statistics, callbacks (spilling last). So the budget
/// bounds the memory reserved from the GPU, red zones and the pool's free memory included; log and
/// statistics record the program's own blocks; and if the callbacks free memory, the log shows both
/// attempts. For another order, stack them by hand (`dmr_adaptors::ResourceBuilder`) and pass the
/// stack to [`with_resource`](Self::with_resource).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct DeviceRuntimeBuilder {
    ordinal: usize,
    device: Option<Device>,
    #[cfg(feature = "cudarc")]
    context: Option<Arc<CudaContext>>,
    max_streams: Option<usize>,
    streams: Option<Arc<StreamPool>>,
    pub(crate) backend: Option<Backend>,
    pub(crate) settings: Settings,
    pub(crate) resource: Option<Arc<dyn DeviceMemoryResource>>,
    pub(crate) layers: Layers,
    pub(crate) recorder: Option<RecorderConfig>,
}

impl DeviceRuntimeBuilder {
    pub(crate) fn new(ordinal: usize) -> Self {
        Self {
            ordinal,
            device: None,
            #[cfg(feature = "cudarc")]
            context: None,
            max_streams: None,
            streams: None,
            backend: None,
            settings: Settings::default(),
            resource: None,
            layers: Layers::default(),
            recorder: None,
        }
    }

    /// Works in the context of this device, such as one of [`Device::from_raw`], instead of the
    /// primary one.
    pub fn with_device(mut self, device: Device) -> Self {
        self.device = Some(device);
        self
    }

    /// Works in a context that the program has already, instead of the primary one.
    ///
    /// Needs feature `cudarc`.
    #[cfg(feature = "cudarc")]
    pub fn context(mut self, context: Arc<CudaContext>) -> Self {
        self.context = Some(context);
        self
    }

    /// Sets the maximum number of streams.
    pub fn max_streams(mut self, max_streams: usize) -> Self {
        self.max_streams = Some(max_streams);
        self
    }

    /// Sets the backend. Without it, `DMR_BACKEND` or the default selects one.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Works on the streams of a pool that the program has already.
    pub fn with_streams(mut self, streams: Arc<StreamPool>) -> Self {
        self.streams = Some(streams);
        self
    }

    /// Allocates from a ready resource, or stack of resources. The builder's layers go around it.
    /// It works on the streams of some pool: pass that to [`with_streams`](Self::with_streams).
    pub fn with_resource(mut self, resource: Arc<dyn DeviceMemoryResource>) -> Self {
        self.resource = Some(resource);
        self
    }

    /// Builds the runtime.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Mismatch`] if parts are of different devices, contexts or stream pools;
    /// [`RuntimeError::Settings`] if they exclude each other; and the errors of opening the device,
    /// choosing the backend and making the streams.
    pub fn build(self) -> Result<DeviceRuntime, RuntimeError> {
        self.check_settings()?;
        crate::recording::start(self.recorder.as_ref())?;
        let backend = match self.resource {
            Some(_) => None,
            None => Some(self.choose_backend()?),
        };
        let given = self.given_device()?;
        if let Some(given) = &given {
            same("context", device(given.ordinal()), device(self.ordinal))?;
        }
        let streams = match &self.streams {
            Some(streams) => {
                same("stream pool", device(streams.device().ordinal()), device(self.ordinal))?;
                if let Some(given) = &given {
                    let named = |device: &Device| format!("CUDA context {:p}", device.handle());
                    same("stream pool", named(streams.device()), named(given))?;
                }
                Arc::clone(streams)
            }
            None => {
                let device = match given {
                    Some(given) => given,
                    None => Device::open(self.ordinal)?,
                };
                let default = StreamPoolConfig::new();
                let max_streams = self.max_streams.unwrap_or(default.max_streams);
                StreamPool::new(device, default.with_max_streams(max_streams))?
            }
        };
        let resource = match (self.resource, backend) {
            (Some(resource), _) => {
                same("resource", device(resource.device_ordinal()), device(self.ordinal))?;
                same_streams(&resource, &streams)?;
                resource
            }
            (None, Some(backend)) => backend.base(&streams, &self.settings)?,
            (None, None) => return Err(RuntimeError::NoBackend),
        };
        let mut layers = self.layers;
        let (mut resource, mut handles) = layers.put_budget(resource, &streams)?;
        if let Some(backend) = backend {
            resource = backend.over(resource, &streams, &self.settings, &mut handles)?;
        }
        let (resource, handles) = layers.put_around(resource, handles, &streams)?;
        Ok(DeviceRuntime::from_parts(streams, resource, handles))
    }

    /// Returns the device whose context the program has passed.
    fn given_device(&self) -> Result<Option<Device>, RuntimeError> {
        #[cfg(feature = "cudarc")]
        if let Some(context) = &self.context {
            let device = Device::from_context(Arc::clone(context))?;
            return Ok(Some(device));
        }
        Ok(self.device.clone())
    }

    fn choose_backend(&self) -> Result<Backend, RuntimeError> {
        let variable = std::env::var_os(Backend::VARIABLE);
        let variable = variable.as_deref().map(|name| name.to_string_lossy());
        Backend::choose(self.backend, variable.as_deref())
    }

    fn check_settings(&self) -> Result<(), RuntimeError> {
        #[cfg(feature = "pool")]
        self.check_pool_settings()?;
        let problem = if self.resource.is_some() && self.backend.is_some() {
            "`with_resource` brings its own backend: leave `backend` out"
        } else if self.resource.is_some() && self.streams.is_none() {
            "`with_resource` needs `with_streams`, with the pool that the resource works on"
        } else if self.streams.is_some() && self.max_streams.is_some() {
            "`with_streams` brings a pool of its own size: leave `max_streams` out"
        } else {
            return Ok(());
        };
        Err(RuntimeError::Settings { problem })
    }
}

fn device(ordinal: usize) -> String {
    format!("device {ordinal}")
}

/// Errors unless the resource works on these streams.
pub(crate) fn same_streams(
    resource: &impl DeviceMemoryResource,
    streams: &StreamPool,
) -> Result<(), RuntimeError> {
    let pool = |id: StreamPoolId| format!("{id:?}");
    same("resource", pool(resource.stream_pool()), pool(streams.id()))
}

/// Errors unless `found == expected`.
fn same(part: &'static str, found: String, expected: String) -> Result<(), RuntimeError> {
    if found == expected { Ok(()) } else { Err(RuntimeError::Mismatch { part, found, expected }) }
}
