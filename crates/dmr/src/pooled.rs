//! The backend `pool`: what the pool is over, and the builder's and the runtime's part in it.

use std::sync::Arc;

use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource, VirtualMemoryError};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::StreamPool;

use crate::backend::{Settings, async_resource};
use crate::layers::Handles;
use crate::{Backend, DeviceRuntime, DeviceRuntimeBuilder, RuntimeError, SharedResource};

/// How many pages a budget has room for, unless they would be smaller than the device's.
#[cfg(feature = "budget")]
const FEWEST_PAGES: u64 = 16;

impl DeviceRuntimeBuilder {
    /// How the pool is made, where the backend is [`Backend::Pool`]: [`PoolConfig::fast`] without
    /// this. It does not choose the backend, and means nothing where `DMR_BACKEND` chooses another.
    ///
    /// The pool maps pages of [`page_size`](PoolConfig::page_size) bytes where the device has
    /// virtual memory; with a page size of 0, and where it has none, it carves up blocks of the
    /// async backend. Under a [`budget`](Self::budget) pages are made small enough for 16 of them to
    /// fit into it, as far as the device has such small ones.
    pub fn pool_config(mut self, config: PoolConfig) -> Self {
        self.settings.pool = Some(config);
        self
    }

    pub(crate) fn check_pool_settings(&self) -> Result<(), RuntimeError> {
        let problem = match (self.settings.pool, &self.resource, self.backend) {
            (None, ..) | (_, None, None | Some(Backend::Pool)) => return Ok(()),
            (_, Some(_), _) => "`with_resource` brings its own backend: leave `pool_config` out",
            _ => "`pool_config` is for `Backend::Pool`: choose that, or leave `pool_config` out",
        };
        Err(RuntimeError::Settings { problem })
    }
}

impl DeviceRuntime {
    /// The pool, if that is the backend: what it [holds](PoolResource::stats), and giving it
    /// [back](PoolResource::trim_to). It is below the other layers, but for the budget: what is
    /// allocated here passes them by, and blocks that come from
    /// [`resource`](DeviceRuntime::resource) must go back there.
    #[must_use]
    pub fn pool(&self) -> Option<&PoolResource<SharedResource>> {
        self.layers.pool.as_deref()
    }
}

impl Settings {
    fn pool_config(&self) -> PoolConfig {
        self.pool.unwrap_or_default()
    }
}

/// What the pool takes memory from: the device's virtual memory, or the async backend where it has
/// none or pages are not wanted.
///
/// A driver that fails is no reason to choose: the runtime of a process would have another backend
/// for good.
pub(crate) fn upstream(
    streams: Arc<StreamPool>,
    settings: &Settings,
) -> Result<SharedResource, RuntimeError> {
    if settings.pool_config().page_size > 0 {
        match VirtualCudaResource::new(Arc::clone(&streams), VirtualConfig::new()) {
            Ok(pages) => return Ok(Arc::new(pages)),
            Err(VirtualMemoryError::Resource(error)) => return Err(error.into()),
            // Each of the others says that the device has none.
            Err(_) => {}
        }
    }
    async_resource(streams)
}

/// The pool over what its [`upstream`] has become: that, or a budget around it.
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
    Ok(PoolResource::new(base, Arc::clone(streams), config)?)
}

/// A power of two where it has to be less than asked for, so that pages leave no rest of the limit.
/// The pool rounds up to what the device has.
#[cfg(feature = "budget")]
fn page_size_within(limit: u64, page_size: u64) -> u64 {
    let most = (limit / FEWEST_PAGES).max(1);
    if page_size <= most { page_size } else { 1 << most.ilog2() }
}
