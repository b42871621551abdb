//! The resources that a replay can run on, by the names of `--resource`.

use std::sync::Arc;

use clap::builder::PossibleValuesParser;
use dmr::dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr::dmr_pool::PoolConfig;
use dmr::{Backend, DeviceRuntime, DeviceRuntimeBuilder};
use dmr_streams::{Device, StreamPool, StreamPoolConfig};

use crate::exit::Failure;

/// The backend `pool` in compact mode.
const POOL_COMPACT: &str = "pool-compact";
/// Blocks of mapped memory.
const VIRTUAL: &str = "virtual";

/// Returns the names: the facade's backends, the default one first, and resources made of its
/// parts.
pub(crate) fn names() -> PossibleValuesParser {
    let backends = Backend::available().iter().map(|backend| backend.name());
    PossibleValuesParser::new(backends.chain([POOL_COMPACT, VIRTUAL]))
}

/// Returns a builder for the resource `name` with at most `max_streams` streams; without a name,
/// for the backend that the environment names.
///
/// # Errors
///
/// An unknown name; no device; a device without virtual memory for a resource that needs it.
pub(crate) fn builder(
    name: Option<&str>,
    ordinal: usize,
    max_streams: usize,
) -> Result<DeviceRuntimeBuilder, Failure> {
    // The pool is measured as on a GPU, also on the simulated driver.
    let builder = DeviceRuntime::builder(ordinal).without_observer();
    if name == Some(VIRTUAL) {
        let device = Device::open(ordinal).map_err(Failure::unusable)?;
        let config = StreamPoolConfig::new().with_max_streams(max_streams);
        let streams = StreamPool::new(device, config).map_err(Failure::unusable)?;
        let resource = VirtualCudaResource::new(Arc::clone(&streams), VirtualConfig::new());
        let resource = Arc::new(resource.map_err(Failure::unusable)?);
        return Ok(builder.with_streams(streams).with_resource(resource));
    }
    let builder = builder.max_streams(max_streams);
    let Some(name) = name else { return Ok(builder) };
    match name {
        POOL_COMPACT => Ok(builder.backend(Backend::Pool).pool_config(PoolConfig::compact())),
        _ => match Backend::available().iter().find(|backend| backend.name() == name) {
            Some(backend) => Ok(builder.backend(*backend)),
            None => Err(Failure::unusable(format!("no resource {name:?}"))),
        },
    }
}
