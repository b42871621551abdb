//! A resource on the streams of a rig.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;

use dmr_buffer::pinned::reap_pinned;
use dmr_core::{DeviceMemoryResource, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::{DeviceContext, StreamLease, StreamPool, Tracked};
use dmr_testkit::Rig;

#[derive(Debug)]
pub(crate) struct Context {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
}

impl Context {
    /// Does not track uses: everything is on the home stream.
    pub(crate) fn direct(rig: &Rig) -> Self {
        let streams = Arc::clone(rig.streams());
        Self::with(rig, Arc::new(DirectCudaResource::new(streams)))
    }

    /// Tracks uses: any stream will do.
    pub(crate) fn tracked(rig: &Rig) -> Self {
        let streams = rig.streams();
        let direct = DirectCudaResource::new(Arc::clone(streams));
        let tracked = Tracked::new(direct, Arc::clone(streams)).expect("one pool");
        Self::with(rig, Arc::new(tracked))
    }

    /// Tracks uses on the streams of a pool that is not a rig's own.
    pub(crate) fn tracked_on(streams: &Arc<StreamPool>) -> Self {
        let direct = DirectCudaResource::new(Arc::clone(streams));
        let tracked = Tracked::new(direct, Arc::clone(streams)).expect("one pool");
        Self { resource: Arc::new(tracked), streams: Arc::clone(streams) }
    }

    pub(crate) fn with(rig: &Rig, resource: Arc<dyn DeviceMemoryResource>) -> Self {
        Self { resource, streams: Arc::clone(rig.streams()) }
    }

    pub(crate) fn home(&self) -> StreamId {
        self.streams.default_stream()
    }

    pub(crate) fn lease(&self) -> StreamLease {
        self.streams.acquire().expect("a stream")
    }

    /// Asserts that nothing is left of what the test allocated.
    pub(crate) fn assert_empty(self) {
        reap_pinned(&self).expect("a reap of pinned memory");
        self.resource.reap_pending().expect("a reap");
        assert_eq!(self.resource.bytes_outstanding(), 0);
    }

    /// Nothing is left of what the test allocated, and its rig agrees.
    pub(crate) fn assert_clean(self, rig: Rig) {
        self.assert_empty();
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
