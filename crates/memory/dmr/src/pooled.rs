//! The backend `pool`: its upstream, and the methods of the builder and the runtime for it.

use std::sync::Arc;

use dmr_core::MemoryObserver;
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource, VirtualMemoryError};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::StreamPool;

use crate::backend::{Settings, async_resource, attached_tool};
use crate::layers::Handles;
use crate::{Backend, DeviceRuntime, DeviceRuntimeBuilder, RuntimeError, SharedResource};

/// The minimum number of pages in a budget, unless they would be smaller than the device's pages.
#[cfg(feature = "budget")]
const FEWEST_PAGES: u64 = 16;

impl DeviceRuntimeBuilder {
    /// Sets the configuration of the pool, if the backend is [`Backend::Pool`]:
    /// [`PoolConfig::fast`] without this. It does not select the backend, and has no effect if
    /// `DMR_BACKEND` selects another.
    ///
    /// The pool maps pages of [`page_size`](PoolConfig::page_size) bytes where the device has
    /// virtual memory; with a page size of 0, and where it has none, it carves up blocks of the
    /// async backend. Under a [`budget`](Self::budget) pages are made small enough for 16 of them
    /// to fit into it, as far as the device has such small ones.
    ///
    /// Needs feature `pool`.
    pub fn pool_config(mut self, config: PoolConfig) -> Self {
        self.settings.pool = Some(config);
        self
    }

    /// Reports the pool's blocks to `observer`, a memory checker ([`PoolResource::with_observer`]).
    /// On the simulated driver it replaces the driver's own observer. It does not choose the
    /// backend, and means nothing where `DMR_BACKEND` chooses another.
    ///
    /// By default the pool reports its blocks to the simulated driver, which then reports a use
    /// after a free, an access outside of a block and a race with the block's tag. An observed pool
    /// leaves a gap behind each block and grows none in place. A pool on NVIDIA's driver has no
    /// observer by default, and no such cost.
    ///
    /// With feature `nvtx`, when Compute Sanitizer is attached, a pool on NVIDIA's driver reports
    /// its blocks to it by default, and takes its memory from the direct backend: the tool refuses
    /// blocks in other memory. The resource's `Debug` output is then `Pool(Direct(device 0))`. With
    /// `without_observer` or `observer` the pool has the same upstream as without the feature.
    ///
    /// Needs feature `pool`.
    pub fn observer(mut self, observer: Arc<dyn MemoryObserver>) -> Self {
        self.settings.observer = ObserverChoice::Given(observer);
        self
    }

    /// Reports the pool's blocks to no observer, not even to the simulated driver: for measurements
    /// on it, and for tests of exact sizes and of growth in place.
    ///
    /// Needs feature `pool`.
    pub fn without_observer(mut self) -> Self {
        self.settings.observer = ObserverChoice::None;
        self
    }

    pub(crate) fn check_pool_settings(&self) -> Result<(), RuntimeError> {
        let has_observer = matches!(self.settings.observer, ObserverChoice::Given(_));
        let has_config = self.settings.pool.is_some();
        let problem = match (&self.resource, self.backend) {
            (None, None | Some(Backend::Pool)) => return Ok(()),
            (Some(_), _) if has_config => {
                "`with_resource` brings its own backend: leave `pool_config` out"
            }
            (Some(_), _) if has_observer => {
                "`with_resource` brings its own backend: leave `observer` out"
            }
            (None, _) if has_config => {
                "`pool_config` is for `Backend::Pool`: choose that, or leave `pool_config` out"
            }
            (None, _) if has_observer => {
                "`observer` is for `Backend::Pool`: choose that, or leave `observer` out"
            }
            _ => return Ok(()),
        };
        Err(RuntimeError::Settings { problem })
    }
}

impl DeviceRuntime {
    /// Returns the pool, if that is the backend; its [`stats`](PoolResource::stats) say what it
    /// holds. It is below every layer but the budget: those layers do not see what is allocated
    /// here. Free a block of [`resource`](DeviceRuntime::resource) there and not here.
    ///
    /// Needs feature `pool`.
    #[must_use]
    pub fn pool(&self) -> Option<&PoolResource<SharedResource>> {
        self.layers.pool.as_deref()
    }
}

/// The observer that the pool reports its blocks to.
#[derive(Clone, Debug, Default)]
pub(crate) enum ObserverChoice {
    /// The simulated driver, or on NVIDIA's driver the attached tool.
    #[default]
    Driver,
    Given(Arc<dyn MemoryObserver>),
    None,
}

impl Settings {
    fn observer(&self, streams: &StreamPool) -> Option<Arc<dyn MemoryObserver>> {
        match &self.observer {
            ObserverChoice::Driver => {
                streams.device().memory_observer().or_else(|| attached_tool(streams))
            }
            ObserverChoice::Given(observer) => Some(Arc::clone(observer)),
            ObserverChoice::None => None,
        }
    }

    fn pool_config(&self) -> PoolConfig {
        self.pool.unwrap_or_default()
    }
}

/// Makes the pool's upstream: the device's virtual memory, or the async backend where it has none
/// or the page size is 0; the direct backend where the pool announces its blocks to a tool, because
/// Compute Sanitizer refuses blocks in other memory.
///
/// Falls back only where virtual memory is unsupported; other driver errors are returned. One
/// failed call must not change the backend for the life of the process.
pub(crate) fn upstream(
    streams: Arc<StreamPool>,
    settings: &Settings,
) -> Result<SharedResource, RuntimeError> {
    #[cfg(feature = "nvtx")]
    if matches!(settings.observer, ObserverChoice::Driver) && attached_tool(&streams).is_some() {
        return Ok(Arc::new(dmr_cuda_direct::DirectCudaResource::new(streams)));
    }
    if settings.pool_config().page_size > 0 {
        match VirtualCudaResource::new(Arc::clone(&streams), VirtualConfig::new()) {
            Ok(pages) => return Ok(Arc::new(pages)),
            Err(VirtualMemoryError::Resource(error)) => return Err(error.into()),
            // Each of the other errors means that the device has no virtual memory.
            Err(_) => {}
        }
    }
    async_resource(streams)
}

/// Makes the pool over its [`upstream`], or over a budget around that.
#[allow(unused_mut, unused_variables, reason = "what is used depends on the features")]
pub(crate) fn over(
    base: SharedResource,
    streams: &Arc<StreamPool>,
    settings: &Settings,
    handles: &Handles,
) -> Result<PoolResource<SharedResource>, RuntimeError> {
    let mut config = settings.pool_config();
    #[cfg(feature = "budget")]
    if let Some(budget) = &handles.budget {
        config.page_size = page_size_within(budget.limit(), config.page_size);
    }
    let pool = PoolResource::new(base, Arc::clone(streams), config)?;
    Ok(match settings.observer(streams) {
        Some(observer) => pool.with_observer(observer),
        None => pool,
    })
}

/// Returns the page size for this limit: `page_size`, or else a smaller power of two, in bytes. The
/// pool rounds it up to the device's granularity.
#[cfg(feature = "budget")]
fn page_size_within(limit: u64, page_size: u64) -> u64 {
    let most = (limit / FEWEST_PAGES).max(1);
    if page_size <= most { page_size } else { 1 << most.ilog2() }
}
