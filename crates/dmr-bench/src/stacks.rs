//! The resources that benches run on, by name.

use std::fmt;
use std::sync::Arc;

use dmr_core::DeviceMemoryResource;
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::{StreamPool, Tracked};

use crate::BenchError;

/// A resource and what the benches have to know of it.
pub struct Stack {
    /// Where memory comes from.
    pub resource: Arc<dyn DeviceMemoryResource>,
    /// Calls take long enough that a bench makes fewer, and only once.
    pub is_slow: bool,
    /// The most that was ever taken from the driver, where it keeps a count.
    pub reserved_peak: Option<ReservedPeak>,
}

/// Answers bytes.
pub type ReservedPeak = Box<dyn Fn() -> Result<u64, BenchError> + Send + Sync>;

/// How a stack is made, on the streams that it is to accept.
type Make = fn(&Arc<StreamPool>) -> Result<Stack, BenchError>;

/// Every stack. One more is one more row.
const STACKS: &[(&str, Make)] =
    &[("direct", direct), ("tracked-direct", tracked_direct), ("async", driver_pool), ("pool", pool), ("pool-compact", compact_pool)];

/// The names that [`make`] knows.
pub fn names() -> impl Iterator<Item = &'static str> {
    STACKS.iter().map(|(name, _)| *name)
}

/// A new stack of that name.
///
/// # Errors
///
/// No such name, and what making it can fail with.
pub fn make(name: &str, streams: &Arc<StreamPool>) -> Result<Stack, BenchError> {
    let found = STACKS.iter().find(|(known, _)| *known == name);
    let (_, make) = found.ok_or_else(|| {
        let known: Vec<_> = names().collect();
        BenchError(format!("no resource {name}: there are {}", known.join(", ")))
    })?;
    make(streams)
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.resource.fmt(f)
    }
}

fn direct(streams: &Arc<StreamPool>) -> Result<Stack, BenchError> {
    let resource = Arc::new(DirectCudaResource::new(Arc::clone(streams)));
    Ok(Stack { resource, is_slow: true, reserved_peak: None })
}

fn tracked_direct(streams: &Arc<StreamPool>) -> Result<Stack, BenchError> {
    let direct = DirectCudaResource::new(Arc::clone(streams));
    let resource = Arc::new(Tracked::new(direct, Arc::clone(streams))?);
    Ok(Stack { resource, is_slow: true, reserved_peak: None })
}

/// Our pool, over the driver's.
fn pool(streams: &Arc<StreamPool>) -> Result<Stack, BenchError> {
    pool_of(streams, PoolConfig::fast())
}

fn compact_pool(streams: &Arc<StreamPool>) -> Result<Stack, BenchError> {
    pool_of(streams, PoolConfig::compact())
}

fn pool_of(streams: &Arc<StreamPool>, config: PoolConfig) -> Result<Stack, BenchError> {
    let upstream = AsyncCudaResource::new(Arc::clone(streams), AsyncConfig::default())?;
    let resource = Arc::new(PoolResource::new(upstream, Arc::clone(streams), config)?);
    let pool = Arc::clone(&resource);
    let reserved_peak: ReservedPeak = Box::new(move || Ok(pool.upstream().reserved_bytes()?.high));
    Ok(Stack { resource, is_slow: false, reserved_peak: Some(reserved_peak) })
}

/// The driver's own pool; it keeps a count of what it took.
fn driver_pool(streams: &Arc<StreamPool>) -> Result<Stack, BenchError> {
    let resource = AsyncCudaResource::new(Arc::clone(streams), AsyncConfig::default())?;
    let resource = Arc::new(resource);
    let pool = Arc::clone(&resource);
    let reserved_peak: ReservedPeak = Box::new(move || Ok(pool.reserved_bytes()?.high));
    Ok(Stack { resource, is_slow: false, reserved_peak: Some(reserved_peak) })
}
