//! Stacks that may take a fixed number of bytes from the device: what W8 and W9 run on.

use std::sync::Arc;

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::BudgetLayer;
use dmr_core::DeviceMemoryResource;
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::StreamPool;

use super::{ReservedPeak, Stack};
use crate::BenchError;

/// Returns the free memory of a stack to the device.
pub type Trim = Box<dyn Fn() -> Result<(), BenchError> + Send + Sync>;

/// A stack with a limit on what it takes from the device.
pub struct Limited {
    /// The stack.
    pub stack: Stack,
    /// Its trim.
    pub trim: Trim,
}

/// Makes a stack with a limit in bytes.
type Make = fn(&Arc<StreamPool>, u64) -> Result<Limited, BenchError>;

/// Stacks by the name that they have without a limit. `pool-budget` is for comparison only: as in
/// the soak, its limit is a budget alone.
const LIMITED: &[(&str, Make)] = &[
    ("async", driver_pool),
    ("pool", |streams, limit| over_blocks(streams, limit, PoolConfig::fast())),
    ("pool-budget", over_blocks_with_budget_only),
    ("pool-compact", |streams, limit| over_blocks(streams, limit, PoolConfig::compact())),
    ("pool-pages", |streams, limit| over_pages(streams, limit, PoolConfig::fast())),
    ("pool-compact-pages", |streams, limit| over_pages(streams, limit, PoolConfig::compact())),
];

/// Makes the stack of this name with a limit in bytes; `None` if none can be made.
///
/// # Errors
///
/// Errors of making the stack.
pub fn limited(
    name: &str,
    streams: &Arc<StreamPool>,
    limit: u64,
) -> Result<Option<Limited>, BenchError> {
    let make = LIMITED.iter().find(|(known, _)| *known == name);
    make.map(|(_, make)| make(streams, limit)).transpose()
}

/// Returns whether [`limited`] makes a stack of this name.
#[must_use]
pub fn can_be_limited(name: &str) -> bool {
    LIMITED.iter().any(|(known, _)| *known == name)
}

/// A pool of the driver with a maximum size.
fn driver_pool(streams: &Arc<StreamPool>, limit: u64) -> Result<Limited, BenchError> {
    let resource = bounded_driver_pool(streams, limit)?;
    let counted = Arc::clone(&resource);
    let trimmed = Arc::clone(&resource);
    let reserved_peak: ReservedPeak = Box::new(move || Ok(counted.reserved_bytes()?.high));
    let stack = Stack { reserved_peak: Some(reserved_peak), ..Stack::of(resource, None) };
    Ok(Limited { stack, trim: Box::new(move || Ok(trimmed.trim_to(0).map(drop)?)) })
}

/// Our pool over blocks of a driver's pool. The budget counts what our pool takes; the maximum size
/// keeps the driver's pool, which holds on to what is freed, below the limit as well.
fn over_blocks(
    streams: &Arc<StreamPool>,
    limit: u64,
    config: PoolConfig,
) -> Result<Limited, BenchError> {
    above_driver_pool(streams, limit, config, bounded_driver_pool(streams, limit)?)
}

/// Our pool over blocks of a driver's pool that has no maximum size: the driver's pool may hold
/// more than the limit.
fn over_blocks_with_budget_only(
    streams: &Arc<StreamPool>,
    limit: u64,
) -> Result<Limited, BenchError> {
    let blocks = AsyncCudaResource::new(Arc::clone(streams), AsyncConfig::default())?;
    above_driver_pool(streams, limit, PoolConfig::fast(), Arc::new(blocks))
}

fn above_driver_pool(
    streams: &Arc<StreamPool>,
    limit: u64,
    config: PoolConfig,
    blocks: Arc<AsyncCudaResource>,
) -> Result<Limited, BenchError> {
    let upstream = BudgetLayer::new(limit).layer(Arc::clone(&blocks));
    let pool = Arc::new(PoolResource::new(upstream, Arc::clone(streams), config)?);
    let trimmed = Arc::clone(&pool);
    let reserved_peak: ReservedPeak = Box::new(move || Ok(blocks.reserved_bytes()?.high));
    let stack = Stack { reserved_peak: Some(reserved_peak), ..Stack::of(pool, None) };
    Ok(Limited { stack, trim: Box::new(move || Ok(trimmed.trim_to(0).map(drop)?)) })
}

/// Our pool in pages that it maps itself, with a budget below it.
fn over_pages(
    streams: &Arc<StreamPool>,
    limit: u64,
    config: PoolConfig,
) -> Result<Limited, BenchError> {
    let pages = VirtualCudaResource::new(Arc::clone(streams), VirtualConfig::new())?;
    let upstream = BudgetLayer::new(limit).layer(pages);
    let pool = Arc::new(PoolResource::new(upstream, Arc::clone(streams), config)?);
    let counted = Arc::clone(&pool);
    let trimmed = Arc::clone(&pool);
    let reserved_peak: ReservedPeak = Box::new(move || Ok(counted.reserved_high()));
    let stack = Stack { reserved_peak: Some(reserved_peak), ..Stack::of(pool, None) };
    Ok(Limited { stack, trim: Box::new(move || Ok(trimmed.trim_to(0).map(drop)?)) })
}

fn bounded_driver_pool(
    streams: &Arc<StreamPool>,
    limit: u64,
) -> Result<Arc<AsyncCudaResource>, BenchError> {
    let config = AsyncConfig::default().with_max_bytes(limit as usize);
    Ok(Arc::new(AsyncCudaResource::new(Arc::clone(streams), config)?))
}
