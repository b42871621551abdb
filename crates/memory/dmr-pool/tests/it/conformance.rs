//! The pool keeps the contract, on every upstream.
//!
//! In one test, one check after the other: on a GPU one of them takes all its memory, and the
//! driver stands still where several threads make and destroy driver pools
//! (docs/src/driver-facts.md).

use std::sync::Arc;

use dmr_core::DeviceMemoryResource;
use dmr_core::conformance::run_all;
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_testkit::Rig;

fn pool<R: DeviceMemoryResource>(rig: &Rig, upstream: R, config: PoolConfig) -> PoolResource<R> {
    PoolResource::new(upstream, Arc::clone(rig.streams()), config).unwrap()
}

fn over_direct(rig: &Rig) -> PoolResource<DirectCudaResource> {
    let upstream = DirectCudaResource::new(Arc::clone(rig.streams()));
    pool(rig, upstream, PoolConfig::fast())
}

fn over_pages(rig: &Rig) -> PoolResource<VirtualCudaResource> {
    let upstream = VirtualCudaResource::new(Arc::clone(rig.streams()), VirtualConfig::new());
    let pool = pool(rig, upstream.unwrap(), PoolConfig::compact());
    assert_eq!(pool.stats().page_size, 8 << 20);
    pool
}

fn over_the_drivers_pool(rig: &Rig) -> PoolResource<AsyncCudaResource> {
    let upstream = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new());
    pool(rig, upstream.unwrap(), PoolConfig::fast())
}

fn keeps_the_contract<U: DeviceMemoryResource>(over: &str, make: fn(&Rig) -> PoolResource<U>) {
    let report = run_all(|| Rig::new().harness(make));
    assert_eq!(report.failed().count(), 0, "over {over}: {report}");
}

#[test]
fn the_pool_keeps_the_contract_over_every_upstream() {
    keeps_the_contract("direct", over_direct);
    keeps_the_contract("pages", over_pages);
    keeps_the_contract("the driver's pool", over_the_drivers_pool);
}
