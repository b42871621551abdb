//! A pool on a simulated machine to which its blocks are reported: uses of bytes outside of a live
//! block, and bytes of two blocks, are findings.

#![allow(dead_code, unused_imports, reason = "each test uses a part of it")]
#![allow(unsafe_code, reason = "host functions, and work that may be out of order")]

pub(crate) mod program;
pub(crate) mod stage;
pub(crate) mod witness;

use std::sync::Arc;

use dmr_core::{DeviceMemoryResource, MemoryObserver};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
pub(crate) use dmr_programs::player::shadow_of;
use dmr_programs::watched::Watched;
use dmr_sim::{Policy, Universe};
use dmr_testkit::{Rig, RigConfig};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_UNKNOWN`: not one of those after which the device is lost.
pub(crate) const UNKNOWN: i32 = 999;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) type Pool = PoolResource<Watched>;

/// The upstream of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upstream {
    Direct,
    Async,
    /// Pages, of 2 MiB if the configuration does not say.
    Virtual,
}

pub(crate) const UPSTREAMS: [Upstream; 3] = [Upstream::Direct, Upstream::Async, Upstream::Virtual];

/// A pool of this kind on a simulated rig; the test reports regions to the simulator.
pub(crate) fn pool_over(upstream: Upstream, rig: &Rig, config: PoolConfig) -> Pool {
    pool_with(upstream, rig, config, None)
}

/// A pool of this kind that reports to an observer, if there is one; else its upstream and the test
/// report to the simulator.
pub(crate) fn pool_with(
    upstream: Upstream,
    rig: &Rig,
    config: PoolConfig,
    observer: Option<Arc<dyn MemoryObserver>>,
) -> Pool {
    let streams = Arc::clone(rig.streams());
    let inner: Box<dyn DeviceMemoryResource> = match upstream {
        Upstream::Direct => Box::new(DirectCudaResource::new(Arc::clone(&streams))),
        Upstream::Async => Box::new(
            AsyncCudaResource::new(Arc::clone(&streams), AsyncConfig::new()).expect("a pool"),
        ),
        Upstream::Virtual => Box::new(
            VirtualCudaResource::new(Arc::clone(&streams), VirtualConfig::new()).expect("pages"),
        ),
    };
    // Small pages, which move as soon as that saves any.
    let is_as_it_comes = config.page_size == PoolConfig::fast().page_size;
    let config = match upstream {
        Upstream::Virtual if is_as_it_comes => {
            config.with_page_size(2 * MIB).with_page_slack_divisor(50).with_waits_first(true)
        }
        _ => config,
    };
    let universe = observer.is_none().then(|| rig.universe().clone());
    let pool = PoolResource::new(Watched::new(inner, universe), streams, config).expect("a pool");
    match observer {
        Some(observer) => pool.with_observer(observer),
        None => pool,
    }
}

/// A simulated rig with a small device.
pub(crate) fn rig(policy: Policy, seed: u64, capacity: u64) -> Rig {
    let builder = Universe::builder().devices(1).policy(policy).seed(seed).capacity(capacity);
    let universe = Some(builder.build().expect("the simulated driver"));
    Rig::with(RigConfig { universe, ..RigConfig::default() })
}

/// Returns the bytes that a pool has taken, as its upstream counts them.
pub(crate) fn taken_from_upstream(pool: &Pool) -> u64 {
    let usage = pool.upstream().usage();
    if pool.stats().page_size > 0 { usage.reserved } else { usage.live }
}

/// Trims the pool to nothing. The first trim records the events that show that a stream is done
/// with memory that it had borrowed, and the second may queue frees in upstream. Where work runs
/// late these have executed only by the third.
pub(crate) fn trim_completely(rig: &Rig, pool: &Pool) {
    for _ in 0..3 {
        rig.device().synchronize().unwrap();
        pool.trim_to(0).unwrap();
    }
}
