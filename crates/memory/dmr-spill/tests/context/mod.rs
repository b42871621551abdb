//! A resource with a budget of a few buffers, and a registry that spills when it refuses.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer};
use dmr_adaptors::callbacks::FailureCallbackLayer;
use dmr_buffer::DeviceBuffer;
use dmr_buffer::pinned::reap_pinned;
use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_spill::{Spill, Spillable};
use dmr_streams::{DeviceContext, StreamLease, StreamPool, Tracked};
use dmr_testkit::Rig;

/// Elements of one buffer of the tests.
pub(crate) const LEN: usize = 1 << 18;
/// Bytes of one buffer of the tests.
pub(crate) const BYTES: u64 = (LEN * 4) as u64;

#[derive(Debug)]
pub(crate) struct Context {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
    pub(crate) budget: Budget,
    pub(crate) spill: Spill,
}

/// The resource below the budget.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Below {
    Tracked,
    Async,
    Pool,
}

pub(crate) const ALL: [Below; 3] = [Below::Tracked, Below::Async, Below::Pool];

impl Context {
    /// Makes a resource with a budget for this number of buffers.
    pub(crate) fn new(rig: &Rig, below: Below, buffers: u64) -> Self {
        let streams = rig.streams();
        let driver = || {
            let config = AsyncConfig::default();
            AsyncCudaResource::new(Arc::clone(streams), config).expect("a driver's pool")
        };
        let backend: Arc<dyn DeviceMemoryResource> = match below {
            Below::Tracked => {
                let direct = DirectCudaResource::new(Arc::clone(streams));
                Arc::new(Tracked::new(direct, Arc::clone(streams)).expect("one pool"))
            }
            Below::Async => Arc::new(driver()),
            Below::Pool => {
                let config = PoolConfig::default();
                Arc::new(PoolResource::new(driver(), Arc::clone(streams), config).expect("a pool"))
            }
        };
        let spill = Spill::new(streams).expect("a stream for copies");
        let budget = Budget::new(buffers * BYTES);
        let limited = BudgetLayer::on(&budget).layer(backend);
        let callbacks = FailureCallbackLayer::new().with_callback(spill.callback());
        let resource = Arc::new(callbacks.layer(limited));
        Self { resource, streams: Arc::clone(streams), budget, spill }
    }

    /// Makes a buffer whose elements all are `value`.
    pub(crate) fn buffer(&self, stream: &StreamLease, value: u32) -> DeviceBuffer<u32> {
        let tag = AllocTag::new("cold");
        let mut buffer = DeviceBuffer::uninit_tagged(self, stream, LEN, tag).expect("room");
        buffer.fill(value, stream).expect("a fill");
        buffer
    }

    pub(crate) fn spillable(&self, stream: &StreamLease, value: u32) -> Spillable<u32> {
        self.spill.insert(self.buffer(stream, value)).expect("tracked, and of this pool")
    }

    /// Nothing is left of what the test allocated, and its rig agrees.
    pub(crate) fn assert_clean(self, rig: Rig) {
        reap_pinned(&self).expect("a reap of pinned memory");
        self.resource.reap_pending().expect("a reap");
        assert_eq!(self.resource.bytes_outstanding(), 0);
        let Self { resource, streams, spill, .. } = self;
        drop((resource, streams, spill));
        rig.assert_clean();
    }
}

impl DeviceContext for Context {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

/// Asserts that all elements are `value`.
pub(crate) fn assert_all(of: &DeviceBuffer<u32>, value: u32, stream: &StreamLease) {
    let host = of.to_host(stream).expect("a copy");
    assert_eq!(host.len(), LEN);
    assert!(host.iter().all(|element| *element == value), "{value}: found {}", host[0]);
}
