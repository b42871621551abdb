//! The resources that benches run on, by name.

mod bare;
mod layers;
mod limited;
mod rmm;

use std::fmt;
use std::sync::Arc;

use dmr_core::DeviceMemoryResource;
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::{StreamPool, Tracked};

use crate::BenchError;
use bare::Bare;
pub use layers::{LAYERS, LOG_RING, Log};
pub use limited::{Limited, Trim, can_be_limited, limited};
pub use rmm::RMM;

use crate::Line;

/// A resource and what the benches have to know of it.
pub struct Stack {
    /// The resource that blocks are allocated from.
    pub resource: Arc<dyn DeviceMemoryResource>,
    /// Calls take long enough that a bench makes fewer, and only once.
    pub is_slow: bool,
    /// The most that was ever taken from the driver, where it keeps a count.
    pub reserved_peak: Option<ReservedPeak>,
    /// The log that a layer writes.
    pub log: Option<Log>,
}

/// Returns the peak of the reserved bytes.
pub type ReservedPeak = Box<dyn Fn() -> Result<u64, BenchError> + Send + Sync>;

/// Makes a stack on the given streams, with the given layers.
type Make = fn(&Arc<StreamPool>, Option<&str>) -> Result<Stack, BenchError>;

/// All stacks; add a row to add one.
const STACKS: &[(&str, Make)] = &[
    ("direct", direct),
    ("tracked-direct", tracked_direct),
    ("virtual", mapped),
    ("tracked-virtual", tracked_mapped),
    ("async", driver_pool),
    ("pool", fast_pool),
    ("pool-compact", compact_pool),
    ("pool-pages", paged_pool),
    ("pool-compact-pages", compact_paged_pool),
    (BARE, bare),
];

/// The stack without memory: its blocks must not be touched.
pub const BARE: &str = "bare";

/// The stacks that layers are measured on.
const BASES: [&str; 2] = [BARE, "async"];

/// The names of the stacks whose memory can be used, without layers.
pub fn names() -> impl Iterator<Item = &'static str> {
    STACKS.iter().map(|(name, _)| *name).filter(|name| *name != BARE)
}

/// The names of the stacks that layers are measured on, each followed by those with a layer.
pub fn layered() -> impl Iterator<Item = String> {
    BASES.iter().flat_map(|base| {
        let with_layers = LAYERS.iter().map(move |layer| format!("{base}+{layer}"));
        std::iter::once((*base).to_owned()).chain(with_layers)
    })
}

/// Splits the name of a stack: `async+budget` is `async` with the layer `budget`.
#[must_use]
pub fn parts(name: &str) -> (&str, Option<&str>) {
    name.split_once('+').map_or((name, None), |(base, layer)| (base, Some(layer)))
}

/// Makes the stack of that name.
///
/// # Errors
///
/// No such name, and what making it can fail with.
pub fn make(name: &str, streams: &Arc<StreamPool>) -> Result<Stack, BenchError> {
    let (base, layer) = parts(name);
    if let Some(made) = rmm::make(base, streams, layer) {
        return made;
    }
    let is_known = layer.is_none_or(|layer| LAYERS.contains(&layer));
    let found = STACKS.iter().find(|(known, _)| is_known && *known == base);
    let Some((_, make)) = found else {
        let of_rmm = RMM.iter().map(|(name, _)| *name);
        let bases: Vec<_> = STACKS.iter().map(|(name, _)| *name).chain(of_rmm).collect();
        let bases = bases.join(", ");
        let layers = LAYERS.join(", +");
        return Err(BenchError(format!("no resource {name}: there are {bases}; with +{layers}")));
    };
    make(streams, layer)
}

impl Stack {
    fn of(resource: Arc<dyn DeviceMemoryResource>, log: Option<Log>) -> Self {
        Self { resource, is_slow: false, reserved_peak: None, log }
    }

    /// Waits until the log has written all rows, so that its thread does not work during the next
    /// measurement.
    ///
    /// # Errors
    ///
    /// The log's.
    pub fn flush_log(&self) -> Result<(), BenchError> {
        self.log.as_ref().map_or(Ok(()), Log::flush)
    }

    /// Adds the number of rows in the log, and of rows that were lost, to the line.
    ///
    /// # Errors
    ///
    /// The log's.
    pub fn describe_log(&self, line: Line) -> Result<Line, BenchError> {
        let Some(log) = &self.log else { return Ok(line) };
        Ok(line.with("log_rows", log.rows()?).with("log_dropped", log.dropped()))
    }
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.resource.fmt(f)
    }
}

fn direct(streams: &Arc<StreamPool>, layer: Option<&str>) -> Result<Stack, BenchError> {
    let stack = layers::wrap(DirectCudaResource::new(Arc::clone(streams)), layer)?;
    Ok(Stack { is_slow: true, ..stack })
}

fn tracked_direct(streams: &Arc<StreamPool>, layer: Option<&str>) -> Result<Stack, BenchError> {
    let direct = DirectCudaResource::new(Arc::clone(streams));
    let stack = layers::wrap(Tracked::new(direct, Arc::clone(streams))?, layer)?;
    Ok(Stack { is_slow: true, ..stack })
}

fn mapped(streams: &Arc<StreamPool>, layer: Option<&str>) -> Result<Stack, BenchError> {
    let resource = VirtualCudaResource::new(Arc::clone(streams), VirtualConfig::new())?;
    Ok(Stack { is_slow: true, ..layers::wrap(resource, layer)? })
}

fn tracked_mapped(streams: &Arc<StreamPool>, layer: Option<&str>) -> Result<Stack, BenchError> {
    let resource = VirtualCudaResource::new(Arc::clone(streams), VirtualConfig::new())?;
    let stack = layers::wrap(Tracked::new(resource, Arc::clone(streams))?, layer)?;
    Ok(Stack { is_slow: true, ..stack })
}

/// The driver's own pool; it keeps a count of what it took.
fn driver_pool(streams: &Arc<StreamPool>, layer: Option<&str>) -> Result<Stack, BenchError> {
    let resource = AsyncCudaResource::new(Arc::clone(streams), AsyncConfig::default())?;
    let resource = Arc::new(resource);
    let pool = Arc::clone(&resource);
    let reserved_peak: ReservedPeak = Box::new(move || Ok(pool.reserved_bytes()?.high));
    let stack = layers::wrap(resource, layer)?;
    Ok(Stack { reserved_peak: Some(reserved_peak), ..stack })
}

fn fast_pool(streams: &Arc<StreamPool>, layer: Option<&str>) -> Result<Stack, BenchError> {
    pool(streams, layer, PoolConfig::fast())
}

fn compact_pool(streams: &Arc<StreamPool>, layer: Option<&str>) -> Result<Stack, BenchError> {
    pool(streams, layer, PoolConfig::compact())
}

/// Our pool over the driver's, which counts what was taken from the device.
fn pool(
    streams: &Arc<StreamPool>,
    layer: Option<&str>,
    config: PoolConfig,
) -> Result<Stack, BenchError> {
    let upstream = AsyncCudaResource::new(Arc::clone(streams), AsyncConfig::default())?;
    let resource = Arc::new(PoolResource::new(upstream, Arc::clone(streams), config)?);
    let pool = Arc::clone(&resource);
    let reserved_peak: ReservedPeak = Box::new(move || Ok(pool.upstream().reserved_bytes()?.high));
    let stack = layers::wrap(resource, layer)?;
    Ok(Stack { reserved_peak: Some(reserved_peak), ..stack })
}

fn paged_pool(streams: &Arc<StreamPool>, layer: Option<&str>) -> Result<Stack, BenchError> {
    in_pages(streams, layer, PoolConfig::fast())
}

fn compact_paged_pool(streams: &Arc<StreamPool>, layer: Option<&str>) -> Result<Stack, BenchError> {
    in_pages(streams, layer, PoolConfig::compact())
}

/// Our pool in pages that it maps itself, which counts what it takes from the device.
fn in_pages(
    streams: &Arc<StreamPool>,
    layer: Option<&str>,
    config: PoolConfig,
) -> Result<Stack, BenchError> {
    let upstream = VirtualCudaResource::new(Arc::clone(streams), VirtualConfig::new())
        .map_err(BenchError::new)?;
    let resource = Arc::new(PoolResource::new(upstream, Arc::clone(streams), config)?);
    let pool = Arc::clone(&resource);
    let reserved_peak: ReservedPeak = Box::new(move || Ok(pool.reserved_high()));
    let stack = layers::wrap(resource, layer)?;
    Ok(Stack { reserved_peak: Some(reserved_peak), ..stack })
}

fn bare(streams: &Arc<StreamPool>, layer: Option<&str>) -> Result<Stack, BenchError> {
    layers::wrap(Bare::new(streams), layer)
}
